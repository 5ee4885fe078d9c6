"""A finished run put to work: evaluated again, asked for predictions."""

from pskd.tasks.predictor import Answer, Predictor
from pskd.use.commands import calibrate, evaluate, predict
from pskd.use.run import Run

__all__ = ["Answer", "Predictor", "Run", "calibrate", "evaluate", "predict"]
