"""The torchmetrics classes: the functions' values, in collections, batch by batch and over processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from pskd import metrics
from pskd.errors import PskdError
from pskd.metrics import functional

CLASSES = (
    "AreaUnderRiskCoverage",
    "BrierScore",
    "ExcessAreaUnderRiskCoverage",
    "ExpectedCalibrationError",
    "NegativeLogLikelihood",
    "TopKError",
)


def predictions(n: int = 301) -> tuple[Tensor, Tensor]:
    """Logits on a coarse grid, so that confidences are tied across batches and processes, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(8, (n,), generator=generator)
    logits = torch.randn(n, 8, generator=generator)
    logits[torch.arange(n), labels] += 1.5
    return logits.round(), labels


def expected(logits: Tensor, labels: Tensor) -> dict[str, float]:
    probs = logits.softmax(1)
    values = {
        "AreaUnderRiskCoverage": functional.area_under_risk_coverage(probs, labels),
        "BrierScore": functional.brier_score(probs, labels),
        "ExcessAreaUnderRiskCoverage": functional.excess_area_under_risk_coverage(probs, labels),
        "ExpectedCalibrationError": functional.expected_calibration_error(probs, labels),
        "NegativeLogLikelihood": functional.negative_log_likelihood(logits, labels, from_logits=True),
        "TopKError": functional.top_k_error(logits, labels, from_logits=True),
    }
    return {name: value.item() for name, value in values.items()}


def collection() -> MetricCollection:
    return MetricCollection([getattr(metrics, name)(from_logits=True) for name in CLASSES])


def as_floats(values: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in values.items()}


def test_a_collection_over_batches_gives_the_functions_values() -> None:
    logits, labels = predictions()
    together = collection()
    for batch in zip(logits.split(64), labels.split(64), strict=True):
        of_batch = together(*batch)
        assert as_floats(of_batch) == pytest.approx(expected(*batch), abs=1e-12)
    assert as_floats(together.compute()) == pytest.approx(expected(logits, labels), abs=1e-12)
    together.reset()
    together.update(logits[:10], labels[:10])
    assert as_floats(together.compute()) == pytest.approx(expected(logits[:10], labels[:10]), abs=1e-12)


def test_aurc_and_its_excess_share_their_state_in_a_collection() -> None:
    together = collection()
    together.update(*predictions())
    groups = [set(group) for group in together.compute_groups.values()]
    assert {"AreaUnderRiskCoverage", "ExcessAreaUnderRiskCoverage"} in groups
    assert len(groups) == 5


def test_a_first_batch_without_errors_does_not_merge_different_metrics() -> None:
    logits, labels = predictions()
    together = MetricCollection({f"top{k}": metrics.TopKError(k=k, from_logits=True) for k in (1, 3, 5)})
    together.update(torch.eye(8), torch.arange(8))
    together.update(logits, labels)
    for k in (1, 3, 5):
        errors = round(functional.top_k_error(logits, labels, k, from_logits=True).item() * len(labels))
        assert together.compute()[f"top{k}"].item() == pytest.approx(errors / (len(labels) + 8), abs=1e-12)


def test_settings_reach_the_functions() -> None:
    logits, labels = predictions()
    probs = logits.softmax(1)
    ece = metrics.ExpectedCalibrationError(n_bins=3)
    assert ece(probs, labels) == functional.expected_calibration_error(probs, labels, 3)
    assert metrics.TopKError(k=2)(probs, labels) == functional.top_k_error(probs, labels, 2)
    with pytest.raises(PskdError, match="n_bins must be at least 1"):
        metrics.ExpectedCalibrationError(n_bins=0)
    with pytest.raises(PskdError, match="k must be at least 1"):
        metrics.TopKError(k=0)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_takes_what_its_function_takes(name: str) -> None:
    """Probabilities, or logits if it is told so; and the one is not mistaken for the other."""
    function = getattr(functional, re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower())
    logits, labels = predictions()
    assert getattr(metrics, name)()(logits.softmax(1), labels) == function(logits.softmax(1), labels)
    assert getattr(metrics, name)(from_logits=True)(logits, labels) == function(logits, labels, from_logits=True)
    with pytest.raises(PskdError, match=r"probs: \d+ of 301 rows are no probabilities.*from_logits=True"):
        getattr(metrics, name)().update(logits, labels)


def test_states_stay_small() -> None:
    logits, labels = predictions()
    sizes = {}
    for name in CLASSES:
        metric: Metric = getattr(metrics, name)(from_logits=True)
        metric.update(logits, labels)
        states = [getattr(metric, state) for state in metric._defaults]
        tensors = [tensor for state in states for tensor in (state if isinstance(state, list) else [state])]
        sizes[name] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert sizes.pop("AreaUnderRiskCoverage") == sizes.pop("ExcessAreaUnderRiskCoverage") == 4 * len(labels)
    assert sizes.pop("ExpectedCalibrationError") == 3 * 10 * 8
    assert set(sizes.values()) == {16}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_compute_without_a_sample_is_an_error(name: str) -> None:
    with pytest.raises(PskdError, match=f"{name} has seen no sample: call update"):
        getattr(metrics, name)().compute()


# Importing torchmetrics takes seconds: one interpreter does it and then becomes two processes.
TWO_PROCESSES = """
import json, os, sys
import numpy as np, torch, torch.distributed as dist
from torchmetrics import MetricCollection
from pskd import metrics

folder, names = sys.argv[1], sys.argv[2:]
data = np.load(f"{folder}/data.npz")
logits, labels = torch.from_numpy(data["logits"]), torch.from_numpy(data["labels"])
first = os.fork()
rank = 0 if first else 1
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting_point", rank=rank, world_size=2)
values = []
for first_share in (190, len(labels)):  # the other process has the rest: fewer samples, or none
    mine = slice(0, first_share) if rank == 0 else slice(first_share, None)
    together = MetricCollection([getattr(metrics, name)(from_logits=True) for name in names])
    for batch in zip(logits[mine].split(50), labels[mine].split(50)):
        if len(batch[1]):
            together.update(*batch)
    values.append({name: value.item() for name, value in together.compute().items()})
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(values, file)
dist.destroy_process_group()
if first:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
"""


def test_two_processes_with_uneven_shares_give_the_value_of_one(tmp_path: Path) -> None:
    logits, labels = predictions()
    np.savez(tmp_path / "data.npz", logits=logits.numpy(), labels=labels.numpy())
    subprocess.run([sys.executable, "-c", TWO_PROCESSES, str(tmp_path), *CLASSES], check=True, timeout=120)
    for rank in range(2):
        uneven, one_idle = json.loads((tmp_path / f"{rank}.json").read_text())
        assert uneven == pytest.approx(expected(logits, labels), abs=1e-12)
        assert one_idle == pytest.approx(expected(logits, labels), abs=1e-12)


def test_without_torchmetrics_the_functions_work_and_a_class_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torchmetrics'] = None\n"
        "from pskd.metrics import top_k_error\n"
        "try: from pskd.metrics import TopKError\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (
        printed.strip() == "pskd.metrics.TopKError needs torchmetrics: pip install -e '.[workbench]' in a clone of pskd"
    )


def test_every_public_name_exists_and_others_are_refused() -> None:
    assert all(getattr(metrics, name) is not None for name in metrics.__all__)
    assert set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="no attribute 'TopKErorr'"):
        metrics.TopKErorr  # noqa: B018
