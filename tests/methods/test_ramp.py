"""What was learnt is the same number in all processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The first process gives one label 0.25, the second two of three 0.5, in two parts; in the next step neither has any.
TWO_PROCESSES = """
import os, sys
import torch, torch.distributed as dist
from pskd.methods.ramp import Learnt

folder = sys.argv[1]
first = os.fork()
rank = 0 if first else 1
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting_point", rank=rank, world_size=2)
learnt = Learnt(power=2.0)
learnt.start_step()
if rank == 0:
    learnt.add(torch.tensor([0.25]), None)
else:
    learnt.add(torch.tensor([0.5, 0.9]), torch.tensor([True, False]))
    learnt.add(torch.tensor([0.5]), None)
learnt.end_step()
learnt.start_step()
learnt.end_step()
learnt.renew()
with open(f"{folder}/{rank}", "w") as file:
    file.write(str(learnt.share().item()))
dist.destroy_process_group()
if first:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
"""


def test_processes_add_up_what_they_have_learnt(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TWO_PROCESSES, str(tmp_path)], check=True, timeout=120)
    shares = [float((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert shares == [pytest.approx((1.25 / 3) ** 2)] * 2
