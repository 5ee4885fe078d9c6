"""Sentence pairs: where they come from, the BPE tokenizer trained on them, and batches of about as many tokens each.

A data set is a function ``(root=None, *, source, target)`` that is registered by its name in ``registry.texts``.
"""

from __future__ import annotations

import inspect
from typing import Any

from pskd.errors import PskdError
from pskd.workbench import registry
from pskd.workbench.data.text.pairs import TextData

__all__ = ["TextData", "load"]


def load(name: str, *, source: str, target: str, pairs: int | None = None, **options: Any) -> TextData:
    """Load a data set.

    Args:
        name: a registered one (``registry.texts.names()``), or the user's own code, which was loaded.
        source, target: from which language and into which, as files are named by them.
        pairs: keep only the first training pairs, this many.
        **options: what the data set takes of the other settings: ``root``, ``test``, ``on_bad``, and its own.
    """
    if source == target:
        raise PskdError(f"data.source and data.target are both {source!r}: name two languages")
    loader = registry.texts.find(name)
    parameters = inspect.signature(loader).parameters
    given = {key: value for key, value in {"pairs": pairs, **options}.items() if key in parameters}
    data = loader(source=source, target=target, **given)
    if not isinstance(data, TextData):
        raise PskdError(f"data={name} must return a pskd.workbench.data.text.TextData, got {type(data).__name__}")
    if pairs is not None:
        data = TextData(data.train.subset(range(min(pairs, len(data.train)))), data.test, data.val)
    for split in (data.train, data.test, data.val):
        if split is not None and not len(split):
            raise PskdError(f"{split.place}: no pair is left")
    return data
