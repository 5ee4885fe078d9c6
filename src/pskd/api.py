"""Training and finished runs from Python. The parts of the workbench are imported when a function is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pskd.errors import PskdError

if TYPE_CHECKING:
    from pskd.config import Config
    from pskd.tasks.predictor import Predictor
    from pskd.use.run import Run

_NEEDED = (
    *("accelerate", "jinja2", "matplotlib", "optuna", "pycocotools", "pydantic", "sacrebleu", "safetensors", "sklearn"),
    *("tokenizers", "torchvision", "transformers"),
)


def need_workbench(what: str = "this command") -> None:
    """Refuse to go on without the libraries of the workbench."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise PskdError(f"{what} needs {', '.join(missing)}: pip install 'pskd[workbench]'")


def train(*words: str, out: str | os.PathLike[str] | None = None, resume: bool = False) -> Run:
    """Train a model and evaluate it, as `pskd train` does; progress is printed.

    Args:
        *words: a recipe or the name of a YAML file, and settings: ``pskd.train("digits", "method=ps_kd", "epochs=3")``.
        out: the run folder, by default runs/RECIPE-METHOD-SEED.
        resume: go on where the run in ``out`` was stopped; a finished one is returned as it is.
    """
    need_workbench("pskd.train")
    from pskd.engine.loop import train as run
    from pskd.use.run import Run

    config, changes = settings(words, resume=resume)
    if config is None and out is None:
        raise PskdError("resume=True needs out: the folder of the run to go on with")
    folder = default_folder(config) if config is not None and out is None else Path(out or "")
    run(config, folder, resume=resume, changes=changes)
    return Run(folder)


def load(
    run: str | os.PathLike[str], *, best: bool = False, device: str | None = None, allow_code: bool = False
) -> Predictor:
    """A finished run's model, ready to be used: call it on an image, an array or a text, or on a list of them.

    ``.model`` is the plain ``nn.Module``, ``.classes`` are its classes, and ``.preprocess`` makes its input.

    Args:
        run: a run folder, or one that `pskd export --format hub` wrote.
        best: the weights of the best epoch by the validation split instead of the last one's.
        device: by default that of the run if it is here, else the CPU.
        allow_code: import code that the folder names; only for folders you trust.
    """
    need_workbench("pskd.load")
    from pskd.tasks.predictor import Predictor

    return Predictor.from_run(Path(run), best=best, device=device, allow_code=allow_code)


def settings(words: Sequence[str], *, resume: bool = False) -> tuple[Config | None, list[str]]:
    """The configuration that a recipe's name and `key=value` words describe, and the latter.

    None without a recipe, where a run that is there is to go on.
    """
    from pskd.config import resolve
    from pskd.recipes import read_recipe

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


def default_folder(config: Config) -> Path:
    """Where a run goes that was given no folder."""
    return Path("runs") / f"{config.recipe}-{config.method.name}-{config.train.seed}".replace("/", "-")
