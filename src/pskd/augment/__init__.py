"""Batched augmentation on the device; what a sample gets depends on the seed, the epoch and the sample alone."""

from pskd.augment.pipeline import Augment
from pskd.augment.random import uniform

__all__ = ["Augment", "uniform"]
