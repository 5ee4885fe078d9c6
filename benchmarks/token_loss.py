"""The loss of PS-KD on tokens, from hidden states to gradients: `LinearHead` against whole logits and dense targets.

4096 tokens x 512 hidden x 10,000 words, float32, forward and backward. The other side is plain PyTorch: all logits, a
dense target (1 - alpha) * label + alpha * past, ``F.cross_entropy``; its past comes from a frozen copy's hidden states
and weights, or from top-k rows spread over all words. Ours also reads and writes the bank. Times are taken alternately
in one process; peak memory is that of a child process above its inputs.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from side_by_side import alternate, median
from torch import Tensor

import pskd
from pskd.linear_head import LinearHead
from pskd.targets import Past

TOKENS, HIDDEN, WORDS, K, ALPHA = 4096, 512, 10_000, 16, 0.7
ROUNDS = 7
MEMORIES, SIDES = ("snapshot", "bank"), ("whole", "ours")
LIMITS = {"memory": 0.35, "time": 1.0, "gradients": 1e-5}


class Work:
    """Both sides of one memory, in the second of two epochs; each call returns the gradients."""

    def __init__(self, memory: str) -> None:
        torch.manual_seed(0)
        self.hidden, self.weight = torch.randn(TOKENS, HIDDEN), torch.randn(WORDS, HIDDEN) / HIDDEN**0.5 * 3
        self.old = LinearHead(self.hidden + 0.1, self.weight * 0.9)
        self.labels, self.index = torch.randint(WORDS, (TOKENS,)), torch.arange(TOKENS)
        self.past: Past | None = None
        frozen = torch.nn.Identity()  # the forward pass up to the head is the same on both sides, so it is left out
        bank = pskd.PredictionBank(TOKENS, WORDS, "topk", K)
        memories = {"snapshot": lambda: pskd.Snapshot(frozen), "bank": lambda: bank}
        self.method = pskd.PSKD(2, ALPHA, memory=memories[memory]())
        self.method.start_epoch(0)
        if memory == "bank":
            self.method(self.old._replace(hidden=self.old.hidden.requires_grad_()), self.labels, index=self.index)
            self.past = bank.recall(self.index)
        self.method.start_epoch(1)

    def ours(self) -> tuple[Tensor, Tensor]:
        inputs = self.hidden.requires_grad_(), self.weight.requires_grad_()
        loss = self.method(LinearHead(*inputs), self.labels, index=self.index, inputs=(self.old,))
        return torch.autograd.grad(loss, inputs)  # type: ignore[return-value]

    def whole(self) -> tuple[Tensor, Tensor]:
        inputs = self.hidden.requires_grad_(), self.weight.requires_grad_()
        with torch.no_grad():
            if self.past is None:
                target = torch.softmax(F.linear(self.old.hidden, self.old.weight), 1)
            else:
                rest = (1 - self.past.values.sum(1, keepdim=True)) / (WORDS - K)
                target = rest.expand(-1, WORDS).scatter(1, self.past.classes, self.past.values)
            target *= ALPHA
            target[self.index, self.labels] += 1 - ALPHA
        return torch.autograd.grad(F.cross_entropy(F.linear(*inputs), target), inputs)  # type: ignore[return-value]


def peak_megabytes(memory: str, side: str) -> float:
    """In a child process: the most memory that one call holds beyond what was there before."""
    # A fixed threshold: what is freed goes back to the system at once, also what making the inputs has used.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, memory, side]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(output.stdout)


def measured_here(memory: str, side: str) -> float:
    work = Work(memory)
    torch.ones(64, 64, requires_grad=True).matmul(torch.ones(64, 64)).sum().backward()  # the library's own buffers
    before = psutil.Process().memory_info().rss
    getattr(work, side)()
    # Not getrusage: its peak is that of the parent, if that was higher when it started this process.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) / 1024 - before / 2**20


def main() -> None:
    within = True
    for memory in MEMORIES:
        work = Work(memory)
        sides: list[Callable[[], object]] = [getattr(work, side) for side in SIDES]
        pairs = zip(work.ours(), work.whole(), strict=True)
        difference = max(float((one - other).norm() / other.norm()) for one, other in pairs)
        whole_seconds, our_seconds = alternate(*sides, rounds=ROUNDS, warmup=1)
        ratio = median([ours / whole for ours, whole in zip(our_seconds, whole_seconds, strict=True)])
        peaks = {side: peak_megabytes(memory, side) for side in SIDES}
        share = peaks["ours"] / peaks["whole"]
        print(f"PS-KD, {memory}")
        print(f"  peak memory   {peaks['ours']:.0f} MB, whole logits {peaks['whole']:.0f} MB: {share:.3f}x")
        print(f"  time          {statistics.median(our_seconds):.3f} s, ratio {ratio}")
        print(f"  gradients     differ by {difference:.1e} of their norm")
        within &= share <= LIMITS["memory"] and ratio.median <= LIMITS["time"] and difference <= LIMITS["gradients"]
    print(f"all within their limits {LIMITS}: {'yes' if within else 'no'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured_here(*sys.argv[1:3]))
    else:
        main()
