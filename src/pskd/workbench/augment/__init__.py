"""Batched augmentation on the device; what a sample gets depends on the seed, the epoch and the sample alone."""

from pskd.workbench.augment.pipeline import Augment

__all__ = ["Augment"]
