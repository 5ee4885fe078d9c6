"""The code blocks of README.md and docs/, for the tests that run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page that are in one of these languages, or of all."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found if not languages or language in languages]


def texts(page: str, language: str) -> list[str]:
    return [text for _, text in blocks(page, language)]


def commands(page: str, program: str = "pskd") -> list[list[str]]:
    """The words of every command of a page that ``program`` is to run, without its name."""
    lines = [line for text in texts(page, "bash") for line in text.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in found if words and words[0] == program]
