"""Image classification: images in, one of K classes out."""

from pskd.tasks.classification.answers import Prediction
from pskd.tasks.classification.predictor import ClassPredictor
from pskd.tasks.classification.task import Classification

__all__ = ["ClassPredictor", "Classification", "Prediction"]
