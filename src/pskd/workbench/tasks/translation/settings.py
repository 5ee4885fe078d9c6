"""The settings of machine translation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pskd.workbench.config import base
from pskd.workbench.config.base import Count, NotNegative
from pskd.workbench.config.run import Config


class DataConfig(base.DataConfig):
    """`name` is numbers (embedded), files, multi30k or iwslt; `root` its folder.

    `source` and `target` are the languages, by which files are named: files has train.de and train.en, test.* and, for
    a best epoch to be chosen, val.*, line by line, plain or .gz. `test` names other test files. `vocabulary` is the
    size of the BPE that both languages share, `max_length` the tokens of a training sentence. `on_bad` says what
    becomes of a pair that is empty, too long or no UTF-8. `pairs` keeps the first training pairs only.
    """

    name: str = "numbers"
    source: str = "de"
    target: str = "en"
    test: str | None = None
    vocabulary: Annotated[int, Field(ge=10, le=10_000_000)] = 10_000
    max_length: Count = 256
    on_bad: Literal["refuse", "skip"] = "refuse"
    pairs: Count | None = None


class ModelConfig(base.ModelConfig):
    """`name` is marian, with `layers`, `width`, `heads`, `inner` and `dropout`, or transformers:TYPE.

    The latter is any sequence-to-sequence model of that library, such as transformers:t5; every other key is a setting
    of its configuration.
    """

    name: str = "marian"


class TrainConfig(base.TrainConfig):
    """As for all tasks, but `batch_size` counts tokens, padding too, of the longer one of the two languages."""

    batch_size: Count = 4096


class EvalConfig(base.EvalConfig):
    """`batch_size` are sentences; `beam` and `length_penalty` are those of the search for a translation."""

    batch_size: Count = 64
    beam: Annotated[int, Field(ge=1, le=1000)] = 5
    length_penalty: NotNegative = 1.0


class TranslationConfig(Config):
    task: Literal["translation"] = "translation"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
