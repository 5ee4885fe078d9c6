"""The Trainer on tiny models with random weights: as by hand, the same in pieces, and resumed to the bit."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F
from banks import stored
from processes import exit_code, in_children
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

import pskd
from pskd.errors import PskdError
from pskd.integrations.files import load_state, save_state
from pskd.integrations.transformers import PSKDMixin, PSKDTrainer, indexed, rows_of

N, WORDS, K, EPOCHS = 20, 30, 3, 3
SIZE = {"vocab_size": WORDS, "max_position_embeddings": 16}
BERT = SIZE | {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BERT |= {"num_labels": K, "pad_token_id": 0}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BART = SIZE | {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "pad_token_id": 0}
BART |= {
    f"{part}_{what}": size
    for part in ("encoder", "decoder")
    for what, size in (("attention_heads", 2), ("ffn_dim", 16))
}
BART |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2}


class Seq2Seq(PSKDMixin, Seq2SeqTrainer):
    """Any Trainer of one's own."""


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, WORDS)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def drawn(kind: str) -> datasets.Dataset:
    """Sentences of 4 to 9 words, and a column that no model takes."""
    torch.manual_seed(0)
    rows = []
    for number in range(N):
        words = torch.randint(3, WORDS, (4 + number % 6,)).tolist()
        row: dict[str, Any] = {"text": "as it was", "input_ids": words}
        if kind == "sentences":
            row |= {"input_ids": words[:4], "labels": number % K}
        elif kind == "tokens":
            row["labels"] = [-100, *(word % K for word in words[1:])]
        else:
            row["labels"] = words[::-1] if kind == "seq2seq" else words
        rows.append(row)
    return datasets.Dataset.from_list(rows)


def network(kind: str, **settings: Any) -> nn.Module:
    torch.manual_seed(1)
    if kind == "sentences":
        return BertForSequenceClassification(BertConfig(**(BERT | STILL | settings)))
    if kind == "tokens":
        return BertForTokenClassification(BertConfig(**(BERT | STILL)))
    if kind == "seq2seq":
        return BartForConditionalGeneration(BartConfig(**BART))
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=8, n_layer=1, n_head=2, **still))


def trainer(out: Path, kind: str, memory: str = "bank", *, model: Any = None, method: Any = None, **args: Any) -> Any:
    train = drawn(kind)
    model = model or network(kind)
    classes = K if kind in ("sentences", "tokens") else WORDS
    if memory == "bank":
        train = indexed(train)
        bank = pskd.PredictionBank(rows_of(train), classes, dtype=torch.float32)
        method = method or pskd.PSKD(EPOCHS, memory=bank)
    else:
        method = method or pskd.PSKD(EPOCHS, memory=pskd.Snapshot(model))
    usual = {"num_train_epochs": EPOCHS, "learning_rate": 0.5, "optim": "sgd", "lr_scheduler_type": "constant"}
    usual |= {"per_device_train_batch_size": 4, "max_grad_norm": 0.0, "weight_decay": 0.0}
    usual |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no"}
    collator: Any = None
    if kind == "tokens":
        collator = DataCollatorForTokenClassification(tokenizer())
    elif kind in ("seq2seq", "causal"):
        collator = DataCollatorForSeq2Seq(tokenizer())  # without the model: it gives no decoder_input_ids
    many = kind == "seq2seq"
    arguments = (Seq2SeqTrainingArguments if many else TrainingArguments)(str(out), **(usual | args))
    made = (Seq2Seq if many else PSKDTrainer)(
        model, arguments, train_dataset=train, eval_dataset=train, data_collator=collator, method=method
    )
    made.remove_callback(PrinterCallback)
    return made


def weights(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def by_hand(kind: str, seen: list[list[int]]) -> nn.Module:
    """The same training without a Trainer, from the samples of each step: no batch, no padding, no collator."""
    model, data = network(kind), drawn(kind)
    first = indexed(data)["index"]
    method = pskd.PSKD(
        EPOCHS, memory=pskd.PredictionBank(rows_of(data), K if kind != "seq2seq" else WORDS, dtype=torch.float32)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    for step, numbers in enumerate(seen):
        if step % (len(seen) // EPOCHS) == 0:
            method.start_epoch(step // (len(seen) // EPOCHS))
        logits, labels, index = [], [], []
        for number in numbers:
            words, wanted = data[number]["input_ids"], data[number]["labels"]
            inputs = {"input_ids": torch.tensor([words])}
            if kind == "seq2seq":
                inputs["decoder_input_ids"] = torch.tensor([[2, *wanted[:-1]]])
            logits.append(model(**inputs).logits.flatten(0, -2))
            labels.append(torch.tensor(wanted).flatten())
            rows = iter(range(first[number], N * 10))
            index.append(torch.tensor([next(rows) if label != -100 else 0 for label in labels[-1]]))
        real = torch.cat(labels) != -100
        loss = method(torch.cat(logits)[real], torch.cat(labels)[real], index=torch.cat(index)[real])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("kind", ["sentences", "tokens", "seq2seq"])
def test_training_is_that_of_a_loop_by_hand(tmp_path: Path, kind: str) -> None:
    made, seen = trainer(tmp_path, kind), []
    first = made.train_dataset["index"]
    compute = made.compute_loss

    def watched(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append([list(first).index(row) for row in inputs["index"].tolist()])
        return compute(model, inputs, *args, **kwargs)

    made.compute_loss = watched
    made.train()
    assert [len(numbers) for numbers in seen] == [4] * 15
    torch.testing.assert_close(weights(made.model), weights(by_hand(kind, seen)), rtol=1e-4, atol=1e-5)
    assert (stored(made.method.memory.state_dict()).epoch > 0).all()  # every record that was counted was written


@pytest.mark.parametrize("memory", ["bank", "snapshot"])
@pytest.mark.parametrize("kind", ["sentences", "tokens", "seq2seq", "causal"])
def test_accumulation_changes_nothing(tmp_path: Path, kind: str, memory: str) -> None:
    """Batches of 10 at once or 2 by 2: the sentences of a micro-batch have different numbers of labels."""
    settings = {"num_train_epochs": EPOCHS, "learning_rate": 0.1}
    whole = trainer(tmp_path, kind, memory, per_device_train_batch_size=10, **settings)
    pieces = trainer(tmp_path, kind, memory, per_device_train_batch_size=2, gradient_accumulation_steps=5, **settings)
    before = weights(whole.model)
    results = [made.train() for made in (whole, pieces)]
    assert (weights(whole.model) - before).abs().max() > 0.01
    torch.testing.assert_close(weights(whole.model), weights(pieces.model), rtol=1e-4, atol=1e-5)
    assert results[0].training_loss == pytest.approx(results[1].training_loss, rel=1e-4)


def test_a_causal_model_by_any_name_learns_the_next_token(tmp_path: Path) -> None:
    """A class of one's own, and a collator that makes the labels: the first loss is the model's own."""

    class Own(GPT2LMHeadModel):
        pass

    plain = network("causal")
    model, train = Own(plain.config), drawn("causal").remove_columns("labels")
    model.load_state_dict(plain.state_dict())
    collator = DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    method = pskd.PSKD(1, memory=pskd.PredictionBank(rows_of(train, "input_ids"), WORDS))
    settings = {"num_train_epochs": 1, "per_device_train_batch_size": N, "report_to": [], "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path), save_strategy="no", disable_tqdm=True, **settings)
    made = PSKDTrainer(
        model, arguments, train_dataset=indexed(train, "input_ids"), data_collator=collator, method=method
    )
    batch = collator([{"input_ids": words} for words in train["input_ids"]])
    assert made.train().training_loss == pytest.approx(plain(**batch).loss.item(), rel=1e-5)
    uncounted = PSKDTrainer(
        model,
        arguments,
        train_dataset=indexed(train),
        data_collator=collator,
        method=pskd.PSKD(1, memory=pskd.PredictionBank(N, WORDS)),
    )
    with pytest.raises(PskdError, match="one record for each sample, but these have several labels"):
        uncounted.train()


def test_a_stream_counts_steps(tmp_path: Path) -> None:
    model = network("sentences")
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    stream = drawn("sentences").to_iterable_dataset()
    method = pskd.PSKD(steps=4, memory=pskd.Snapshot(model, refresh=2))
    PSKDTrainer(model, arguments, train_dataset=stream, method=method).train()
    assert method.alpha_t == pytest.approx(0.8)
    by_epochs = pskd.PSKD(2, memory=pskd.Snapshot(model))
    with pytest.raises(PskdError, match=r"an epoch of a stream is; give PSKD\(steps=...\)"):
        PSKDTrainer(model, arguments, train_dataset=stream, method=by_epochs).train()


def test_a_model_that_is_none_of_the_library_s(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.EmbeddingBag(WORDS, 8), nn.Linear(8, K))

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            return {"logits": self.net(input_ids)}

    made = trainer(tmp_path, "sentences", model=Own())
    before = weights(made.model)
    made.train()
    assert not torch.equal(weights(made.model), before)


def test_class_weights_and_accumulation(tmp_path: Path) -> None:
    def made(**settings: Any) -> Any:
        bank = pskd.PredictionBank(rows_of(drawn("tokens")), K, dtype=torch.float32)
        method = pskd.PSKD(EPOCHS, memory=bank, weight=torch.tensor([0.2, 1.0, 3.0]))
        return trainer(tmp_path, "tokens", method=method, learning_rate=0.1, **settings)

    whole = made(per_device_train_batch_size=10)
    pieces = made(per_device_train_batch_size=2, gradient_accumulation_steps=5)
    whole.train(), pieces.train()
    torch.testing.assert_close(weights(whole.model), weights(pieces.model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "memory"), [("sentences", "bank"), ("tokens", "bank"), ("seq2seq", "snapshot")])
@pytest.mark.parametrize("stop", [10, 7])  # 5 steps are an epoch
def test_resume_is_equal_to_the_bit(tmp_path: Path, kind: str, memory: str, stop: int) -> None:
    saving = {"save_strategy": "steps", "save_steps": stop}
    whole = trainer(tmp_path, kind, memory, **saving)
    whole.train()
    folder = tmp_path / f"checkpoint-{stop}"
    assert (folder / "pskd-0-of-1.safetensors").is_file()
    resumed = trainer(tmp_path / "again", kind, memory)
    resumed.train(resume_from_checkpoint=str(folder))
    assert torch.equal(weights(whole.model), weights(resumed.model))


def test_resume_with_dropout(tmp_path: Path) -> None:
    def made() -> Any:
        model = network("sentences", hidden_dropout_prob=0.3)
        return trainer(tmp_path, "sentences", model=model, save_strategy="steps", save_steps=7)

    whole, resumed = made(), made()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert torch.equal(weights(whole.model), weights(resumed.model))


def test_evaluation_takes_the_plain_loss(tmp_path: Path) -> None:
    made = trainer(tmp_path, "sentences", eval_strategy="epoch")
    made.train()
    losses = [record["eval_loss"] for record in made.state.log_history if "eval_loss" in record]
    assert len(losses) == EPOCHS
    made.model.eval()
    with torch.no_grad():
        logits = made.model(torch.tensor(drawn("sentences")["input_ids"])).logits
    assert losses[-1] == pytest.approx(
        F.cross_entropy(logits, torch.tensor(drawn("sentences")["labels"])).item(), rel=1e-4
    )


def test_generation_in_evaluation_is_not_given_the_index(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, "seq2seq", predict_with_generate=True, generation_max_length=6, per_device_eval_batch_size=5
    )
    assert made.evaluate()["eval_loss"] > 0


def test_the_column_and_its_rows() -> None:
    tokens = indexed(drawn("tokens"))
    lengths = [3 + number % 6 for number in range(N)]
    assert list(tokens["index"]) == [sum(lengths[:number]) for number in range(N)]
    assert rows_of(tokens) == sum(lengths)
    assert list(indexed(drawn("sentences"))["index"]) == list(range(N))
    turned = drawn("tokens").select(range(N - 1, -1, -1))
    assert list(indexed(turned)["index"])[1] == lengths[-1]
    assert indexed([{"labels": 1}])[0] == {"labels": 1, "index": 0}
    with pytest.raises(PskdError, match='it has a column "index" already'):
        indexed(tokens)
    with pytest.raises(PskdError, match="a stream has no indices"):
        indexed(drawn("tokens").to_iterable_dataset())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PskdError, match="epochs=3, but the Trainer makes 2"):
        trainer(tmp_path, "sentences", num_train_epochs=2).train()
    with pytest.raises(PskdError, match="label_smoothing_factor"):
        trainer(tmp_path, "sentences", label_smoothing_factor=0.1)
    with pytest.raises(PskdError, match="CSKD needs partner_logits"):
        trainer(tmp_path, "sentences", method=pskd.CSKD())
    with pytest.raises(PskdError, match="reduction='sum'"):
        trainer(tmp_path, "sentences", method=pskd.Hard(reduction="sum"))
    half = pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(20, K, host=0, hosts=2))
    with pytest.raises(
        PskdError, match="the bank is made for 2 hosts, but there are 1; a bank for each process is not"
    ):
        trainer(tmp_path, "sentences", method=half)
    answers = BertForQuestionAnswering(BertConfig(**(BERT | {"num_labels": 2})))
    with pytest.raises(PskdError, match="start_positions, end_positions are several"):
        trainer(tmp_path, "sentences", model=answers)
    bare = trainer(tmp_path, "sentences")
    bare.train_dataset = drawn("sentences")
    with pytest.raises(PskdError, match='a training batch has no "index"'):
        bare.train()
    made = trainer(tmp_path, "sentences", save_strategy="epoch")
    made.train()
    (tmp_path / "checkpoint-10" / "pskd-0-of-1.safetensors").unlink()
    with pytest.raises(PskdError, match="has 0 of the files"):
        trainer(tmp_path, "sentences").train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))


def test_a_state_file_is_checked(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    state = {
        "epoch": 3,
        "memory": {"weights": {"a.b": shared, "tied": shared, "turned": shared.view(2, 3).T}, "word": None},
    }
    save_state(state, tmp_path / "state")
    read = load_state(tmp_path / "state")
    assert json.dumps(read, default=lambda tensor: tensor.tolist()) == json.dumps(
        state, default=lambda tensor: tensor.tolist()
    )
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-8])
    with pytest.raises(PskdError, match="is no state of a method, or it is damaged"):
        load_state(tmp_path / "state")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "pskd.integrations.transformers")
    with pytest.raises(ModuleNotFoundError, match=r"needs transformers: pip install -e '\.\[transformers\]'"):
        importlib.import_module("pskd.integrations.transformers")


def test_two_processes_are_as_one_with_their_batches_together_and_resume(tmp_path: Path) -> None:
    kind = "tokens"  # of which each process has another number

    def shared(path: Path | None, **settings: Any) -> Any:
        rows = rows_of(drawn(kind))
        method = pskd.PSKD(EPOCHS, memory=pskd.PredictionBank(rows, K, dtype=torch.float32, path=path))
        return trainer(tmp_path, kind, method=method, save_strategy="steps", save_steps=7, **settings)

    def work() -> None:
        torch.set_num_threads(1)
        made, again = (
            shared(tmp_path / name, per_device_train_batch_size=2, ddp_backend="gloo") for name in ("one", "other")
        )
        made.train()
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))  # 5 steps are an epoch
        assert torch.equal(weights(made.model), weights(again.model))
        torch.save(weights(made.model), tmp_path / os.environ["RANK"])

    assert [exit_code(child) for child in in_children(work, 2)] == [0, 0]
    saved = load_state(tmp_path / "checkpoint-15" / "pskd-0-of-1.safetensors")
    one = shared(None, per_device_train_batch_size=4)
    one.train()
    for rank in "01":
        two = torch.load(tmp_path / rank, weights_only=True)
        torch.testing.assert_close(two, weights(one.model), rtol=1e-4, atol=1e-5)
    records = [stored(state).values for state in (saved["memory"], one.method.memory.state_dict())]
    torch.testing.assert_close(*records, rtol=1e-4, atol=1e-5)
