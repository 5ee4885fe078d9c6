"""Metrics of a classifier: functions (torch only), and torchmetrics classes that are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pskd.errors import installed_by
from pskd.metrics.functional import (
    ReliabilityBins,
    RiskCoverage,
    SampleScores,
    area_under_risk_coverage,
    area_under_risk_coverage_from,
    brier_score,
    confidence_and_correct,
    excess_area_under_risk_coverage,
    excess_area_under_risk_coverage_from,
    expected_calibration_error,
    expected_calibration_error_from,
    negative_log_likelihood,
    reliability_bins,
    reliability_bins_from,
    risk_coverage_curve,
    risk_coverage_curve_from,
    score_samples,
    summarize,
    top_k_error,
)

if TYPE_CHECKING:
    from pskd.metrics.modules import (
        AreaUnderRiskCoverage,
        BrierScore,
        ExcessAreaUnderRiskCoverage,
        ExpectedCalibrationError,
        NegativeLogLikelihood,
        TopKError,
    )

__all__ = [
    "AreaUnderRiskCoverage",
    "BrierScore",
    "ExcessAreaUnderRiskCoverage",
    "ExpectedCalibrationError",
    "NegativeLogLikelihood",
    "ReliabilityBins",
    "RiskCoverage",
    "SampleScores",
    "TopKError",
    "area_under_risk_coverage",
    "area_under_risk_coverage_from",
    "brier_score",
    "confidence_and_correct",
    "excess_area_under_risk_coverage",
    "excess_area_under_risk_coverage_from",
    "expected_calibration_error",
    "expected_calibration_error_from",
    "negative_log_likelihood",
    "reliability_bins",
    "reliability_bins_from",
    "risk_coverage_curve",
    "risk_coverage_curve_from",
    "score_samples",
    "summarize",
    "top_k_error",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pskd.metrics' has no attribute {name!r}")
    try:
        modules = import_module("pskd.metrics.modules")
    except ModuleNotFoundError as error:
        hint = f"pskd.metrics.{name} needs torchmetrics: {installed_by('workbench')}"
        raise ModuleNotFoundError(hint, name=error.name) from error
    return getattr(modules, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
