"""Words that make a reader stop may not come back: in the source, its messages, the documentation and the results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = {
    r"\bsaid\b": "name who says it, or what to do",
    r"to the bit\b": "exactly the same, bit-exact",
    r"\bends? with a word\b": "ends with a message",
    r"\bobey": "follow, use",
    r"\bbring (it|them) back\b": "restore",
    r"\ba mistake of (pskd|ours)": "a bug in pskd",
    r"\bmade anew\b": "made again, replaced",
    r"\bon (its|their|the folder's) word\b": "because the folder names it",
}


def test_plain_words() -> None:
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "results").glob("**/README.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}, better: {better}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for banned, better in BANNED.items()
        for match in re.finditer(banned, line)
    ]
    assert not wrong, "\n".join(wrong)
