"""What importing the core costs: torch, numpy and the standard library, and nothing more."""

from __future__ import annotations

import subprocess
import sys

from public_names import stubs

CORE = (
    "pskd.PSKD, pskd.CSKD, pskd.TFKD, pskd.Hard, pskd.LabelSmoothing, pskd.Method, pskd.Loss, pskd.SameClassPartners,"
    " pskd.Memory, pskd.PredictionBank, pskd.Snapshot, pskd.Indexed, pskd.soft_cross_entropy, pskd.schedules"
)


def run(code: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_name_alone_loads_not_even_torch() -> None:
    loaded = run("import sys, pskd; pskd.__version__; pskd.schedules.linear; print(*sys.modules)")
    assert "pskd.schedules" in loaded
    assert not {"torch", "numpy"} & set(loaded)


def test_the_whole_core_adds_only_its_own_modules_to_torch() -> None:
    added = run(
        "import sys, numpy, torch; before = set(sys.modules); import pskd;"
        f"{CORE}; pskd.metrics.functional; print(*set(sys.modules) - before)"
    )
    assert "pskd.methods.ps_kd" in added
    foreign = {name.partition(".")[0] for name in added} - {"pskd"} - set(sys.stdlib_module_names)
    assert not foreign, f"import pskd also loads {sorted(foreign)}"


def test_all_public_names_are_there() -> None:
    import pskd

    assert set(dir(pskd)) == {"__version__", *pskd.__all__}
    for name in pskd.__all__:
        assert getattr(pskd, name) is not None
    assert not hasattr(pskd, "no_such_name")


def test_editors_and_type_checkers_see_them_too() -> None:
    for path, text in stubs().items():
        assert path.read_text() == text, "run python tests/public_names.py"


WITHOUT_LIBRARIES = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("accelerate", "optuna", "pydantic", "rich", "torchvision", "typer", "yaml"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import pskd
print(hasattr(pskd, "no_such_name"), *dir(pskd))
"""


def test_names_can_be_looked_up_without_the_workbench_s_libraries() -> None:
    found, *names = run(WITHOUT_LIBRARIES)
    assert found == "False"
    assert {"PSKD", "Run", "train"} <= set(names)
