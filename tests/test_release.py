"""What is done elsewhere, on a push or a tag, names things that are here."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from pages import ROOT

import pskd

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs(name: str) -> dict[str, Any]:
    parts: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]
    return parts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_makes_a_target_that_is_there(path: Any) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in jobs(path.stem).items():
        assert job["runs-on"] == "ubuntu-latest", name
        assert set([job["needs"]] if "needs" in job else []) <= jobs(path.stem).keys()
        commands = [step["run"] for step in job["steps"] if "run" in step]
        made = [command.split()[1] for command in commands if command.startswith("make ")]
        assert set(made) <= targets, name
        assert made or any("pypi-publish" in step["uses"] or "deploy-pages" in step["uses"] for step in job["steps"])


def test_every_supported_python_and_the_lower_bounds_are_tested() -> None:
    parts = jobs("test")
    versions = parts["test"]["strategy"]["matrix"]["python"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert versions == [f"3.{minor}" for minor in range(int(oldest.partition(".")[2]), 15)]
    (setup,) = [step["with"] for step in parts["oldest"]["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["python-version"] == oldest
    assert "make oldest PYTHON=python" in [step.get("run") for step in parts["oldest"]["steps"]]


def test_a_tag_publishes_what_was_checked_without_a_password() -> None:
    text = (ROOT / ".github/workflows/publish.yml").read_text()
    assert yaml.safe_load(text)[True] == {"push": {"tags": ["v*"]}}  # YAML takes `on` for a truth
    parts = jobs("publish")
    assert parts["publish"]["needs"] == "build"
    assert parts["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == pskd.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["preferred-citation"]["title"] == "Self-Knowledge Distillation with Progressive Refinement of Targets"


def test_the_linter_of_a_commit_is_one_that_make_lint_accepts() -> None:
    """With an older one, code that `make lint` accepts cannot be committed."""
    (hooks,) = [
        each
        for each in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        if "ruff" in each["repo"]
    ]
    (least,) = [word for word in PROJECT["optional-dependencies"]["dev"] if word.startswith("ruff>=")]
    known, asked = (tuple(map(int, word.split("."))) for word in (hooks["rev"][1:], least.removeprefix("ruff>=")))
    assert known >= asked
