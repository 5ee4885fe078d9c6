"""How other libraries are told of a classifier: config.json, and the lines that load it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pskd.workbench.data import View
from pskd.workbench.models.external import LIBRARIES
from pskd.workbench.runs.trust import plain_options


def library_of(model: dict[str, Any]) -> tuple[str, str]:
    """The library that a model comes from, and its name there."""
    library, _, member = str(model["name"]).partition(":")
    return (library, member) if library in LIBRARIES else ("pskd", str(model["name"]))


def hub_config(model: dict[str, Any], classes: Sequence[str], view: View) -> dict[str, Any]:
    """In the form that timm reads; other libraries' models say there what they are, too."""
    library, name = library_of(model)
    options = plain_options({key: value for key, value in model.items() if key != "name"})
    channels = {"in_chans": view.channels} if library == "timm" else {"in_channels": view.channels}
    return {
        "library": library,
        "architecture": name,
        "num_classes": len(classes),
        "label_names": list(classes),
        "model_args": {**channels, **options},
        "pretrained_cfg": {
            "num_classes": len(classes),
            "label_names": list(classes),
            "input_size": [view.channels, *view.size],
            "fixed_input_size": False,
            "interpolation": "bilinear",
            "crop_pct": max(view.size) / (view.resize or max(view.size)),
            "crop_mode": "center",
            "mean": list(view.mean),
            "std": list(view.std),
        },
    }


def loading(model: dict[str, Any], classes: Sequence[str], view: View) -> dict[str, str]:
    """Lines of Python that load the folder, by library."""
    library, name = library_of(model)
    own = 'import pskd\n\nclassify = pskd.load("FOLDER")\nprint(classify("photo.jpg"))'
    if library == "timm":
        return {
            "timm": f'import timm\n\nmodel = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # {name}',
            "pskd": own,
        }
    options = plain_options({key: value for key, value in model.items() if key != "name"})
    if library == "torchvision" and view.channels == 3 and not options:
        lines = (
            "from safetensors.torch import load_file\nfrom torchvision.models import get_model\n\n"
            f'model = get_model("{name}", num_classes={len(classes)})\n'
            'model.load_state_dict(load_file("FOLDER/model.safetensors"), strict=True)\nmodel.eval()'
        )
        return {"torchvision": lines, "pskd": own}
    return {"pskd": own}
