"""`make demo` does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_the_demo_ends_with_a_table_and_a_page(tmp_path: Path) -> None:
    """With five epochs instead of a hundred."""
    program = (
        f"import sys; sys.path.insert(0, {str(DEMO.parent)!r}); import demo; demo.SETTINGS[2] = 'epochs=5'; demo.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PS-KD" in done.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
