"""How a model is taught: plain cross-entropy, label smoothing, CS-KD, TF-KD and PS-KD."""

from pskd.methods.base import Loss, Method, Surroundings
from pskd.methods.cs_kd import CSKD, SameClassPartners
from pskd.methods.hard import Hard
from pskd.methods.label_smoothing import LabelSmoothing
from pskd.methods.ps_kd import PSKD
from pskd.methods.tf_kd import TFKD

__all__ = ["CSKD", "PSKD", "TFKD", "Hard", "LabelSmoothing", "Loss", "Method", "SameClassPartners", "Surroundings"]
