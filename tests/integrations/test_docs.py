"""docs/integrations.md and the lines of README.md for Lightning and Hugging Face are run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import lightning as L
import pytest
import torch
from pages import texts
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import pskd


@pytest.mark.filterwarnings("ignore")
def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = texts("docs/integrations.md", "python")
    assert len(blocks) == 6
    for block in blocks:
        exec(block, names)
        if "method" in names:
            assert names["method"].state_dict()["epoch"] == 2
    assert list(Path("hf-run").glob("checkpoint-*/pskd-0-of-1.safetensors"))
    assert list(Path("accelerate-run").glob("custom_checkpoint_0.pkl"))
    assert "method" in names["saved"]


def readme(library: str) -> str:
    (block,) = [block for block in texts("README.md", "py") if f"pskd.integrations.{library}" in block]
    assert len([line for line in block.splitlines() if line.strip()]) <= 5
    return block


@pytest.mark.filterwarnings("ignore")
def test_the_readme_s_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = TensorDataset(torch.randn(64, 8), torch.arange(64) % 10)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = nn.Linear(8, 10), nn.CrossEntropyLoss()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return self.criterion(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    names: dict[str, Any] = {"L": L, "pskd": pskd, "train": train, "module": Module(), "DataLoader": DataLoader}
    exec(readme("lightning"), names)
    assert names["method"].alpha_t == pytest.approx(0.8)
    rows = datasets.Dataset.from_list([{"input_ids": [1, 2 + i % 5, 3], "labels": i % 2} for i in range(16)])
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=10, num_labels=2, **size))
    args = TrainingArguments("out", num_train_epochs=3, report_to=[], use_cpu=True, disable_tqdm=True)
    names = {"pskd": pskd, "train": rows, "model": model, "args": args}
    exec(readme("transformers"), names)
    assert names["method"].alpha_t == pytest.approx(0.8)
