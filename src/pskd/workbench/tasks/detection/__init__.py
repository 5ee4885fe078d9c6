"""Object detection: images in, boxes of K classes out, by Faster R-CNN on the trunk of a classification run."""

from pskd.workbench.tasks.detection.predictor import DetectedObjects, DetectionPredictor
from pskd.workbench.tasks.detection.task import Detection

__all__ = ["DetectedObjects", "Detection", "DetectionPredictor"]
