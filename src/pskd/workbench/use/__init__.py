"""A finished run put to work: evaluated again, asked for predictions."""

from pskd.workbench.tasks.predictor import Answer, Predictor
from pskd.workbench.use.commands import calibrate, evaluate, predict
from pskd.workbench.use.run import Run

__all__ = ["Answer", "Predictor", "Run", "calibrate", "evaluate", "predict"]
