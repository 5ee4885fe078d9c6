"""A finished run put to work: evaluated again, asked for predictions."""

from pskd.tasks.predictor import Answer, Predictor
from pskd.use.commands import evaluate, predict

__all__ = ["Answer", "Predictor", "evaluate", "predict"]
