"""Image classification: images in, one of K classes out."""

from pskd.workbench.tasks.classification.predictor import ClassPredictor, Prediction
from pskd.workbench.tasks.classification.task import Classification

__all__ = ["ClassPredictor", "Classification", "Prediction"]
