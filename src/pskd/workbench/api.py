"""Training and finished runs from Python. The parts of the workbench are imported when a function is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pskd.errors import PskdError, installed_by, printable
from pskd.workbench.train.progress import print_if_slow

__all__ = ["Run", "export", "load", "train"]

if TYPE_CHECKING:
    from pskd.workbench.config import Config
    from pskd.workbench.tasks.predictor import Predictor
    from pskd.workbench.use.run import Run as Run

_NEEDED = (
    *("accelerate", "jinja2", "matplotlib", "optuna", "pycocotools", "pydantic", "sacrebleu", "safetensors", "sklearn"),
    *("tokenizers", "torchvision", "transformers"),
)


def need_workbench(what: str = "this command") -> None:
    """Refuse to go on without the libraries of the workbench."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise PskdError(f"{what} needs {', '.join(missing)}: {installed_by('workbench')}")


def train(
    *words: str, out: str | os.PathLike[str] | None = None, resume: bool = False, allow_code: bool = False
) -> Run:
    """Train a model and evaluate it, as `pskd train` does; progress is printed.

    Args:
        *words: a recipe or the name of a YAML file, and settings: ``pskd.train("digits", "method=ps_kd", "epochs=3")``.
        out: the run folder, by default runs/RECIPE-METHOD-SEED.
        resume: continue the run in ``out`` where it was stopped; a finished one is returned as it is.
        allow_code: import code that the folder of a resumed run names; only for folders you trust.
    """
    need_workbench("pskd train")
    with print_if_slow("loading libraries ..."):
        config, changes = settings(words, resume=resume)
        from pskd.workbench.train.loop import train as run
        from pskd.workbench.use.run import Run

    if config is not None:
        folder = f"{config.recipe}-{config.method.name}-{config.train.seed}".replace("/", "-")
        out = Path("runs", folder) if out is None else out
        if config.scale == "laptop":
            print(printable("\n  ".join(["scale=laptop changes", *_laptop_changes(words, config)])), flush=True)
    if out is None:
        raise PskdError("which run? name its folder: pskd train --resume --out FOLDER")
    run(config, Path(out), resume=resume, allow_code=allow_code, changes=changes)
    return Run(out)


def load(
    run: str | os.PathLike[str], *, best: bool = False, device: str | None = None, allow_code: bool = False
) -> Predictor:
    """A finished run's model, ready to use: call it on an image, an array or a text, or on a list of them.

    ``.model`` is the plain ``nn.Module``, ``.classes`` are its classes, ``.preprocess`` makes its input.

    Args:
        run: a run folder, or one that `pskd export --format hub` wrote.
        best: the weights of the best epoch by the validation split instead of the last one's.
        device: by default the run's own if it is here, else the CPU.
        allow_code: import code that the folder names; only for folders you trust.
    """
    need_workbench("pskd.load")
    from pskd.workbench.tasks.predictor import Predictor

    return Predictor.from_run(Path(run), best=best, device=device, allow_code=allow_code)


def export(
    run: str | os.PathLike[str],
    form: str,
    out: str | os.PathLike[str],
    *,
    calibrated: bool = False,
    preprocessing: bool = False,
    best: bool = False,
    allow_code: bool = False,
) -> str:
    """Write a finished run's model for other programs, as `pskd export` does; returns a line about it.

    Args:
        run: its folder.
        form: "onnx", "pt2" (torch.export), or "hub": a folder to publish.
        out: the file or folder, which must not exist yet.
        calibrated: divide the logits by the temperature that `pskd calibrate` measured.
        preprocessing: take uint8 images (N, H, W, C) instead of normalised float32 (N, C, H, W).
    """
    need_workbench("pskd.export")
    from pskd.workbench.report.card import write_card
    from pskd.workbench.runs import weights
    from pskd.workbench.runs.folder import RunFolder
    from pskd.workbench.tasks.predictor import Predictor
    from pskd.workbench.use.export import FORMATS, export_file, new_folder

    source, target = Path(run), Path(out)
    predictor = Predictor.from_run(source, best=best, device="cpu", allow_code=allow_code)
    if form in FORMATS:
        folder = RunFolder(source)
        config = folder.config(allow_code=allow_code) if folder.config_file.is_file() else None
        model = predictor.to_export(config, calibrated=calibrated, preprocessing=preprocessing)
        return export_file(model, form, target)
    if form != "hub":
        raise PskdError(f"--format {form} is unknown; allowed are {', '.join(FORMATS)}, hub")
    if calibrated or preprocessing:
        raise PskdError(
            "--calibrated and --with-preprocessing are for onnx and pt2: a hub folder has calibration.json instead"
        )
    with new_folder(target) as beside:
        predictor.save_for_hub(beside, weights.path_of(source, best=best))
        write_card(source, predictor, beside)
    return f"{target}: weights, config.json and README.md; fill in the intended use, then publish it"


def settings(words: Sequence[str], *, resume: bool = False) -> tuple[Config | None, list[str]]:
    """The configuration that a recipe's name and `key=value` words describe, and these words.

    Without a recipe it is None: then an existing run is to be resumed.
    """
    from pskd.workbench.config import resolve
    from pskd.workbench.recipes import read_recipe

    changes = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise PskdError(f"{names[1]!r} is a second recipe: give one, and settings as key=value")
    if not names and not resume:
        raise PskdError("which recipe? for example: pskd train digits (pskd recipes ls lists them)")
    if not names:
        return None, changes
    own_file = names[0].endswith((".yaml", ".yml"))
    return resolve(read_recipe(names[0]), changes, name=Path(names[0]).stem if own_file else names[0]), changes


def _laptop_changes(words: Sequence[str], config: Config) -> list[str]:
    from pskd.workbench.config import differences

    full, _ = settings([*words, "scale=full"])
    assert full is not None
    return differences(full, config)


def __getattr__(name: str) -> Any:
    if name != "Run":
        raise AttributeError(f"module 'pskd.workbench.api' has no attribute {name!r}")
    from pskd.workbench.use.run import Run

    return Run
