"""How a model is taught: one file for each method."""

from pskd.methods.base import Loss, Method
from pskd.methods.byot import BYOT
from pskd.methods.crl import CRL
from pskd.methods.cs_kd import CSKD, SameClassPartners
from pskd.methods.ddgsd import DDGSD
from pskd.methods.disturb_label import DisturbLabel
from pskd.methods.dlb import DLB
from pskd.methods.elr import ELR
from pskd.methods.focal import Focal
from pskd.methods.hard import Hard
from pskd.methods.label_smoothing import LabelSmoothing
from pskd.methods.maxsup import MaxSup
from pskd.methods.mean_teacher import MeanTeacher
from pskd.methods.ols import OLS
from pskd.methods.ps_kd import PSKD
from pskd.methods.sat import SAT
from pskd.methods.temporal_ensembling import TemporalEnsembling
from pskd.methods.tf_kd import TFKD
from pskd.methods.zipf_ls import ZipfLS

__all__ = [
    "BYOT",
    "CRL",
    "CSKD",
    "DDGSD",
    "DLB",
    "ELR",
    "OLS",
    "PSKD",
    "SAT",
    "TFKD",
    "DisturbLabel",
    "Focal",
    "Hard",
    "LabelSmoothing",
    "Loss",
    "MaxSup",
    "MeanTeacher",
    "Method",
    "SameClassPartners",
    "TemporalEnsembling",
    "ZipfLS",
]
