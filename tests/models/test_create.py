from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models


def parameters(name: str, num_classes: int, **options: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in models.create(name, num_classes, **options).parameters())


def test_every_listed_name_makes_a_model() -> None:
    assert models.names() == sorted(set(models.names()))
    with torch.device("meta"):
        for name in models.names():
            model = models.create(name, num_classes=7, in_channels=2)
            assert model.stem(torch.empty(2, 2, 32, 32)).shape[2:] == (32, 32)
            assert model.fc.out_features == 7


def test_options_scale_a_family_down() -> None:
    assert parameters("resnet8", 10, width=32) > 3.5 * parameters("resnet8", 10)
    assert parameters("densenet", 100, blocks=[2, 2, 2, 2], growth=12) < 150_000
    assert parameters("pyramidnet", 100, depth=20, alpha=48) == parameters("pyramidnet20", 100)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "resnet21",
            {},
            r"model 'resnet21' is unknown; did you mean resnet20\? allowed are bottleneck_resnet, densenet",
        ),
        ("?", {}, r"model '\?' is unknown; allowed are bottleneck_resnet, "),
        ("keras:resnet-50", {}, "the prefix 'keras' is unknown, allowed are: torchvision, timm"),
        ("keras:resnet50", {}, "model=keras:resnet50 names code, which is imported on your own word only"),
        (
            "resnet20",
            {"wdith": 8},
            "'resnet20': there is no option 'wdith', only: width, init; its family takes depth, width",
        ),
        ("resnet20", {"depth": 56}, "'resnet20': there is no option 'depth', only: width"),
        (
            "resnext29_8x64d",
            {"width": 4},
            "there is no option 'width', only: init; its family takes depth, cardi",
        ),
        ("resnet", {"depth": 21}, r"depth=21 must be 6 n \+ 2 with n >= 1: 8, 14"),
        ("resnet", {"depth": 2}, "depth=2 must be"),
        ("pyramidnet", {"depth": "20"}, r"depth='20' must be 9 n \+ 2 with n >= 1: 11, 20"),
        ("pyramidnet", {"depth": 20, "alpha": -1}, "model 'pyramidnet': alpha must be 0 or a positive number, got -1"),
        ("pyramidnet", {"shakedrop": 0.5}, "shakedrop is 0.5; allowed are True, False"),
        ("resnext", {"cardinality": 0}, "cardinality must be at least 1, got 0"),
        ("densenet", {"blocks": [2, 0]}, r"blocks=\[2, 0\] must list a positive number of blocks per stage"),
        ("bottleneck_resnet", {"blocks": 3}, "blocks=3 must list"),
        ("preact_resnet", {"blocks": []}, r"blocks=\[\] must list"),
        ("densenet121", {"init": "zero"}, "init is 'zero'; allowed are he, he_fc, torch"),
        ("resnet8", {"num_classes": 0}, "model 'resnet8': num_classes must be at least 1, got 0"),
        ("resnet8", {"in_channels": 1.5}, "in_channels must be a whole number, got 1.5"),
        ("torchvision:resnet5O", {}, "'torchvision:resnet5O' is unknown: .* lists all names; did you mean resnet50"),
        ("torchvision:fasterrcnn_resnet50_fpn", {}, "is unknown"),
        ("torchvision:resnet18", {"wdith": 8}, "'torchvision:resnet18' refuses its options.* 'wdith'"),
    ],
)
def test_errors_are_one_line_that_says_what_is_allowed(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(PskdError, match=message) as caught:
        models.create(name, **{"num_classes": 10} | options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("member", "in_channels"), [("resnet18", 3), ("squeezenet1_1", 1), ("resnet18", 5)])
def test_torchvision_by_prefix(member: str, in_channels: int) -> None:
    model = models.create(f"torchvision:{member}", num_classes=7, in_channels=in_channels)
    logits = model(torch.randn(2, in_channels, 64, 64))
    logits.sum().backward()
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert logits.shape == (2, 7)
    assert first.weight.shape[1] == first.in_channels == in_channels
    assert first.weight.grad is not None


def test_torchvision_classifiers_with_a_second_head_have_one_output() -> None:
    with torch.device("meta"):
        logits = models.create("torchvision:googlenet", num_classes=7).train()(torch.empty(2, 3, 64, 64))
    assert logits.shape == (2, 7)


@pytest.mark.parametrize(("library", "extra"), [("timm", "timm"), ("torchvision", "workbench")])
def test_a_missing_library_names_the_extra(library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # what import finds where the library is not installed
    with pytest.raises(PskdError, match=rf"needs {library}: pip install -e '\.\[{extra}\]'"):
        models.create(f"{library}:resnet18", num_classes=10)


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm_by_prefix() -> None:
    model = models.create("timm:resnet10t", num_classes=7, in_channels=1)
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 7)
    with pytest.raises(PskdError, match=r"'timm:resnet10tt' is unknown: .*; did you mean resnet10t"):
        models.create("timm:resnet10tt", num_classes=7)
    with pytest.raises(PskdError, match="refuses its options"):
        models.create("timm:resnet10t", num_classes=7, wdith=8)


def test_models_import_torch_only() -> None:
    probe = "import sys, pskd.workbench.models; print({'torchvision', 'timm', 'torchmetrics'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", probe], text=True).strip() == "set()"


@pytest.mark.parametrize(("member", "head"), [("resnet18", "fc"), ("squeezenet1_1", "classifier.1")])
def test_trained_weights_get_a_new_head_for_other_classes(
    member: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the library's cache, in which the test puts weights of its own making."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    from torchvision.models import get_model, get_model_weights

    made = get_model(member)
    file = tmp_path / "hub" / "checkpoints" / get_model_weights(member).DEFAULT.url.rsplit("/", 1)[1]  # type: ignore[attr-defined]
    file.parent.mkdir(parents=True)
    torch.save(made.state_dict(), file)
    model = models.create(f"torchvision:{member}", 7, weights="DEFAULT")
    assert model.eval()(torch.randn(2, 3, 64, 64)).shape == (2, 7)
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(head)}
    assert len(kept) == len(made.state_dict()) - 2
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in kept.items())
    assert models.create(f"torchvision:{member}", 1000, weights="DEFAULT").get_submodule(head).weight.shape[0] == 1000
