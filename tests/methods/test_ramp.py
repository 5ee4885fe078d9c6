"""What was learnt is the same number in all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from banks import batch_of
from processes import exit_code, in_children

from pskd.methods.auto_alpha import AutoAlpha
from pskd.schedules import constant


def test_processes_add_up_what_they_have_learnt(tmp_path: Path) -> None:
    """The first gives one label 0.25, the second two of three 0.5, in two parts; in the next step neither has any."""

    def work() -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        auto = AutoAlpha(constant, 50, "epoch", torch.device("cpu"))  # so that the power is 2
        auto.start(0)
        for given, distilled in ([([0.25], None)], [([0.5, 0.9], torch.tensor([True, False])), ([0.5], None)])[rank]:
            p = torch.tensor(given, dtype=torch.float64)
            logits, labels = torch.stack((p, 1 - p), 1).log(), torch.zeros(len(p), dtype=torch.long)
            auto.observe(batch_of(logits, labels, distilled))
        auto.end_step()
        auto.end_step()
        auto.start(1)
        (tmp_path / str(rank)).write_text(str(auto.value.item()))
        dist.barrier()
        dist.destroy_process_group()

    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]
    assert [float((tmp_path / str(rank)).read_text()) for rank in range(2)] == [pytest.approx((1.25 / 3) ** 2)] * 2
