from __future__ import annotations

import torch

from pskd.workbench.buffers import Reused

LARGE = (3 << 20, 3)  # 36 MB of float32


def test_memory_is_used_again_when_no_tensor_has_it():
    memory, cpu = Reused(), torch.device("cpu")
    first, second = memory.empty(LARGE, cpu), memory.empty(LARGE, cpu)
    assert first.shape == LARGE
    assert first.dtype == torch.float32
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2, "both are in use"
    row, freed = first[7].fill_(5), second.data_ptr()
    del first, second
    third, fourth = memory.empty(LARGE, cpu).fill_(1), memory.empty(LARGE, cpu).fill_(2)
    assert third.data_ptr() == freed
    places.add(fourth.data_ptr())
    assert len(places) == 3, "a row of the first is still in use"
    assert row.eq(5).all()
    del row, third, fourth
    again = [memory.empty(LARGE, cpu) for _ in range(3)]
    assert {each.data_ptr() for each in again} == places
    other = memory.empty((3 << 20, 4), cpu).fill_(3)
    assert other.shape == (3 << 20, 4)
