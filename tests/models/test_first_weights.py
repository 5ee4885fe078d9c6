"""Trained weights to begin from; they are made here and put where the libraries keep theirs, nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.models.first_weights import adapt_channels, copy_weights, find_pretraining, head_of

SMALLEST = "shufflenet_v2_x0_5"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torchvision's cache with the file of a small model, which has no weights in it yet."""
    from torchvision.models import get_model_weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder / get_model_weights(SMALLEST).DEFAULT.url.rpartition("/")[2]


def test_torchvision_takes_what_is_cached_and_gets_a_new_head(cached: Path):
    from torchvision.models import get_model

    trained = get_model(SMALLEST)
    torch.save(trained.state_dict(), cached)
    model = models.create(f"torchvision:{SMALLEST}", 3, 1, weights="DEFAULT")
    known, own = trained.state_dict(), model.state_dict()
    assert own["conv1.0.weight"].equal(known["conv1.0.weight"].sum(1, keepdim=True))
    assert own["fc.weight"].shape[0] == 3
    same = [name for name in own if not name.startswith(("fc.", "conv1.0"))]
    assert all(own[name].equal(known[name]) for name in same)
    told = find_pretraining(f"torchvision:{SMALLEST}", {"weights": "DEFAULT"})
    assert told is not None
    assert (told.size, told.resize, told.mean[0], told.classes) == (224, 256, 0.485, 1000)
    assert find_pretraining(f"torchvision:{SMALLEST}", {}) is None


class Harm:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return (self.file.touch, ())


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_file_with_code_in_it_is_not_read(library: str, cached: Path, tmp_path: Path):
    """And timm's advice to unpickle it is not passed on."""
    pytest.importorskip(library)
    harmed, file = tmp_path / "harmed", tmp_path / "weights.pth"
    torch.save({"fc.weight": Harm(harmed)}, cached)
    torch.save(Harm(harmed), file)
    name = {"torchvision": f"torchvision:{SMALLEST}", "timm": "timm:test_resnet"}[library]
    options = {"torchvision": {"weights": "DEFAULT"}, "timm": {"checkpoint_path": str(file)}}[library]
    with pytest.raises(PskdError, match=r"holds more than tensors, and is not read$"):
        models.create(name, 3, **options)
    assert not harmed.exists()


def test_timm_takes_what_is_cached(tmp_path: Path):
    timm = pytest.importorskip("timm")
    trained = timm.create_model("test_resnet")
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    save_file(trained.state_dict(), folder / "snapshots" / ("0" * 40) / "model.safetensors")
    model = models.create("timm:test_resnet.r160_in1k", 3, 1, pretrained=True, cache_dir=str(tmp_path))
    known, own = trained.state_dict(), model.state_dict()
    assert own["layer1.0.conv1.weight"].equal(known["layer1.0.conv1.weight"])
    assert own["conv1.0.weight"].shape[1] == 1
    assert head_of(model) == "fc"
    told = find_pretraining("timm:test_resnet", {"pretrained": True})
    assert told is not None
    assert (told.size, told.resize, told.mean) == (160, 168, (0.5, 0.5, 0.5))


def test_tensors_of_one_model_in_another():
    before, after = models.create("resnet8", 10, 3, width=4), models.create("resnet8", 3, 1, width=4)
    fresh = {name: value.clone() for name, value in after.state_dict().items()}
    assert copy_weights(before.state_dict(), after, "this", new_head=False)
    known, own = before.state_dict(), after.state_dict()
    assert own["fc.weight"].equal(fresh["fc.weight"])
    assert own["stages.1.0.residual.0.0.weight"].equal(known["stages.1.0.residual.0.0.weight"])
    grey = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        colour = before.eval().forward_features(grey.expand(-1, 3, -1, -1))
        assert torch.allclose(after.eval().forward_features(grey), colour, atol=1e-5)
    again = models.create("resnet8", 10, 3, width=4)
    assert not copy_weights(known, again, "this", new_head=False)
    assert again.state_dict()["fc.weight"].equal(known["fc.weight"])
    assert copy_weights(known, again, "this", new_head=True)


def test_what_does_not_fit_is_named():
    model, name = models.create("resnet8", 3, 1, width=4), "stages.0.0.residual.0.0.weight"
    state = dict(model.state_dict())
    for tensors, message in (
        (state | {"other.weight": torch.zeros(1)}, "which has no other.weight"),
        (state | {name: torch.zeros(5, 4, 3, 3)}, "residual.0.0.weight is 5 x 4 x 3 x 3, here 4 x 4"),
        ({key: value for key, value in state.items() if key != name}, "it has no stages"),
    ):
        with pytest.raises(PskdError, match=message):
            copy_weights(tensors, model, "this", new_head=False)


def test_filters_answer_to_a_grey_image_as_they_did():
    filters, grey = torch.randn(4, 3, 3, 3, dtype=torch.float64), torch.randn(1, 1, 6, 6, dtype=torch.float64)
    answer = nn.functional.conv2d(grey.expand(-1, 3, -1, -1), filters)
    one = adapt_channels(filters, 1)
    assert torch.allclose(nn.functional.conv2d(grey, one), answer)
    assert torch.allclose(nn.functional.conv2d(grey.expand(-1, 3, -1, -1), adapt_channels(one, 3)), answer)
