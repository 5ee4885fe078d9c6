"""Object detection: images in, boxes of K classes out, by Faster R-CNN on the trunk of a classification run."""

from pskd.tasks.detection.predictor import DetectionPredictor, Found
from pskd.tasks.detection.task import Detection

__all__ = ["Detection", "DetectionPredictor", "Found"]
