"""What PS-KD adds to a training step of translation, in per cent of the step with plain cross-entropy.

A Transformer of 3+3 layers and width 256, a vocabulary of 9,521, batches of at most 2048 tokens a side: forward,
backward, AdamW, all in the second epoch, when every token has a past. The three are timed alternately.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from side_by_side import alternate, median

import pskd
from pskd.methods.base import IGNORE_INDEX, Method
from pskd.methods.hard import Hard
from pskd.workbench.models import seq2seq

WORDS, SENTENCES, LENGTH, K = 9521, 128, 16, 16
LIMITS = {"bank": 5, "snapshot": 40}
ROUNDS = 15


def main() -> None:
    torch.manual_seed(0)
    original = seq2seq.create("marian", WORDS, layers=3, width=256, heads=4, inner=512)
    source, labels = (torch.randint(3, WORDS, (SENTENCES, LENGTH)) for _ in range(2))
    labels[::8, -2:] = IGNORE_INDEX  # a little padding
    mask = torch.ones_like(source, dtype=torch.bool)
    inputs = source, mask, labels.clamp_min(0).roll(1, 1)
    index = torch.arange(labels.numel()).view_as(labels)

    def step_of(make: Callable[[torch.nn.Module], Method]) -> Callable[[], None]:
        model = copy.deepcopy(original).train()
        optimizer, method = torch.optim.AdamW(model.parameters(), lr=1e-4), make(model)

        def step() -> None:
            loss = method(model(*inputs), labels, index=index, inputs=inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        method.start_epoch(0)
        step()
        method.start_epoch(1)
        return step

    def with_bank(model: torch.nn.Module) -> Method:
        return pskd.PSKD(2, 0.7, memory=pskd.PredictionBank(labels.numel(), WORDS, "topk", K))

    def with_snapshot(model: torch.nn.Module) -> Method:
        return pskd.PSKD(2, 0.7, memory=pskd.Snapshot(model))

    plain, bank, snapshot = alternate(
        step_of(lambda _: Hard()), step_of(with_bank), step_of(with_snapshot), rounds=ROUNDS, warmup=1
    )
    print(f"plain cross-entropy, a step: {median(plain)} s")
    within = True
    for name, seconds in (("bank", bank), ("snapshot", snapshot)):
        added = median([100 * (own / base - 1) for own, base in zip(seconds, plain, strict=True)])
        within &= added.median <= LIMITS[name]
        print(f"PS-KD with a {name} adds, per cent (at most {LIMITS[name]}): {added}")
    print(f"all within their limits: {'yes' if within else 'no'}")


if __name__ == "__main__":
    main()
