"""Machine translation: its settings, its batches and its loss. A token is a sample, with its own record in a bank."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import nn

from pskd.errors import PskdError
from pskd.methods.base import Loss, Method
from pskd.plan import Step, Stretch, split_step
from pskd.settings import Count, NotNegative, Range
from pskd.workbench import registry
from pskd.workbench.config import base
from pskd.workbench.config.base import Config
from pskd.workbench.data.text.buckets import Buckets, padding_share
from pskd.workbench.data.text.pairs import Pairs
from pskd.workbench.data.text.tokenizer import Tokenizer
from pskd.workbench.models.seq2seq import POSITIONS
from pskd.workbench.runs.group import Group
from pskd.workbench.tasks.base import Task
from pskd.workbench.tasks.predictor import splits_of
from pskd.workbench.tasks.translation.predictor import (
    Encoded,
    TokenBatch,
    TranslationPredictor,
    build_translator,
    load_data,
)


class TranslationDataConfig(base.DataConfig):
    """`name` is numbers (embedded), files, multi30k or iwslt; `root` its folder.

    `source` and `target` are the languages, by which files are named: files has train.de and train.en, test.* and, for
    a best epoch to be chosen, val.*, line by line, plain or .gz. `test` names other test files. `vocabulary` is the
    size of the BPE that both languages share, `max_length` the tokens of a training sentence. `on_bad` says what
    happens to a pair that is empty, too long or not UTF-8. `pairs` keeps the first training pairs only.
    """

    name: str = "numbers"
    source: str = "de"
    target: str = "en"
    test: str | None = None
    vocabulary: Annotated[int, Range(ge=10, le=10_000_000)] = 10_000
    max_length: Count = 256
    on_bad: Literal["refuse", "skip"] = "refuse"
    pairs: Count | None = None


class TranslationModelConfig(base.ModelConfig):
    """`name` is marian, with `layers`, `width`, `heads`, `inner` and `dropout`, or transformers:TYPE.

    The latter is any sequence-to-sequence model of that library, such as transformers:t5; every other key is a setting
    of its configuration.
    """

    name: str = "marian"


class TranslationTrainConfig(base.TrainConfig):
    """As for all tasks, but `batch_size` counts tokens, padding too, of the longer one of the two languages."""

    batch_size: Count = 4096


class TranslationEvalConfig(base.EvalConfig):
    """`batch_size` counts sentences; `beam` and `length_penalty` belong to the search for a translation."""

    batch_size: Count = 64
    beam: Annotated[int, Range(ge=1, le=1000)] = 5
    length_penalty: NotNegative = 1.0


class TranslationConfig(Config):
    task: Literal["translation"] = "translation"
    data: TranslationDataConfig = TranslationDataConfig()
    model: TranslationModelConfig = TranslationModelConfig()
    train: TranslationTrainConfig = TranslationTrainConfig()
    eval: TranslationEvalConfig = TranslationEvalConfig()


@registry.tasks.register("translation")
class Translation(Task):
    """Sentences of one language in, of another one out."""

    Config = TranslationConfig
    Predictor = TranslationPredictor
    data_sets = registry.texts
    unit = "tok"
    selects_by = "bleu"
    rows_by_host = False  # a record belongs to a token, a sample is a sentence
    needs_whole_model = "translation computes its loss in chunks from whole output weights"
    providers = {  # noqa: RUF012
        "index": lambda _, batch: batch.index,
        "inputs": lambda _, batch: batch.inputs,
    }

    def __init__(self, config: TranslationConfig) -> None:
        self.config = config
        settings = config.data
        if settings.max_length > POSITIONS:
            raise PskdError(
                f"data.max_length={settings.max_length} is more than the {POSITIONS} tokens a model can see"
            )
        data = load_data(config)
        self.tokenizer = Tokenizer.train(data.train.source + data.train.target, settings.vocabulary)
        self.train = self._within_length(data.train)
        self.splits = {name: Encoded.of(pairs, self.tokenizer) for name, pairs in splits_of(data).items()}
        self.num_classes = len(self.tokenizer)
        self.num_samples, self.num_rows = len(self.train.pairs), len(self.train.target.tokens)
        lengths = self.train.source.lengths, self.train.target.lengths
        self.buckets = Buckets(*lengths, config.train.batch_size)
        self.notes = (
            *(note for split in (self.train, *self.splits.values()) if (note := split.pairs.note) is not None),
            f"{self.num_samples:,} pairs, {self.num_rows:,} target tokens, vocabulary {self.num_classes:,};"
            f" {len(self.buckets)} batches of at most {config.train.batch_size:,} tokens,"
            f" {padding_share(self.buckets.batches(0, 0), *lengths):.1%} padding",
        )

    @classmethod
    def refuses(cls, method: type[Method]) -> str | None:
        if method.takes_heads:
            return None
        able = [name for name in registry.methods.names() if registry.methods.find(name).takes_heads]
        return f"translation takes {', '.join(able)}"

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """A hash of all training tokens and the tokenizer."""
        digest = hashlib.blake2b(self.tokenizer.to_json().encode(), digest_size=16)
        for side in (self.train.source, self.train.target):
            digest.update(side.lengths.numpy().data)
            digest.update(side.tokens.numpy().data)
        return digest.hexdigest()

    def model(self) -> nn.Module:
        return build_translator(self.config.model.model_dump(), self.num_classes)

    def plan(self, epoch: int, group: Group, stretches: Sequence[Stretch] = ()) -> list[Step]:
        train, counts = self.config.train, self.train.target.lengths
        return [
            split_step(batch, train.accumulate, group.rank, group.world, padding=batch[:1], counts=counts)
            for batch in self.buckets.batches(train.seed, epoch)
        ]

    def batches(
        self, plan: Sequence[Step], epoch: int, device: torch.device, needs: Collection[str] = ()
    ) -> Iterator[TokenBatch]:
        for step in plan:
            for part in step.parts:
                yield self.train.batch(part, device)

    def loss(self, model: nn.Module, batch: TokenBatch, real: int, method: Method) -> tuple[Loss, None]:
        distilled = (
            torch.zeros(len(batch.targets), dtype=torch.bool, device=batch.targets.device) if real == 0 else None
        )
        output = model(*batch.inputs)
        return method.loss(output, batch.targets, distilled=distilled, **self.provided(method, model, batch)), None

    def metadata(self) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "model": self.config.model.model_dump(),
            "tokenizer": self.tokenizer.to_json(),
            "search": {"beam": self.config.eval.beam, "length_penalty": self.config.eval.length_penalty},
        }

    def _within_length(self, pairs: Pairs) -> Encoded:
        """The training pairs that are not too long."""
        limit = self.config.data.max_length
        source, target = self.tokenizer.encode(pairs.source), self.tokenizer.encode(pairs.target)
        long = torch.maximum(source.lengths, target.lengths) > limit
        reason = f"over data.max_length={limit} tokens"
        kept = pairs.without(dict.fromkeys(long.nonzero().flatten().tolist(), reason), self.config.data.on_bad)
        which = (~long).nonzero().flatten()
        if not len(which):
            raise PskdError(f"{pairs.place}: every pair is {reason}")
        return Encoded(kept, source.subset(which), target.subset(which))
