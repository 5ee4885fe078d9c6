"""Files that a user names: a device, and what is somebody else's, stay as they are."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest

from pskd.errors import PskdError, error_context
from pskd.workbench.runs.files import csv_text, write_atomic, write_named


def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    """As `pskd report -o /dev/null` by root would."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(PskdError, match="pipe is a device or a pipe, not a file: choose another place"):
        write_atomic(tmp_path / "pipe", "x")
    with pytest.raises(PskdError, match="pipe is a device or a pipe"):
        write_named(tmp_path / "link", "x", "an x", "x")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_only_what_we_wrote_is_overwritten(tmp_path: Path) -> None:
    place, link = tmp_path / "page.html", tmp_path / "link"
    link.symlink_to(place)
    for text in ("<!doctype html>1", "<!doctype html>2"):
        write_named(link, text, "a report", "<!doctype html>")
        assert place.read_text() == text
    assert link.is_symlink()
    place.write_text("years of work")
    with pytest.raises(PskdError, match="holds something else than a report and would be overwritten"):
        write_named(link, text, "a report", "<!doctype html>")
    assert place.read_text() == "years of work"


def test_errors_of_other_libraries_become_one_line() -> None:
    class OfTheirOwn(Exception):
        pass

    with (
        pytest.raises(PskdError, match=r"it cannot be built \(OfTheirOwn: layers must be whole\)"),
        error_context("it cannot be built"),
    ):
        raise OfTheirOwn("layers must\nbe whole")
    with pytest.raises(FileNotFoundError), error_context("x"):
        raise FileNotFoundError


def test_a_spreadsheet_runs_no_cell_of_a_table() -> None:
    """Names of files and classes may come from a stranger; numbers stay numbers."""
    formulas = ["=cmd()", "+1+cmd()", "-2+3", "@SUM(A1)", "\tx", "\r=x"]
    lines = csv.reader(io.StringIO(csv_text([formulas, ["-1.5", "+2e3", -3, "plain, with comma", ""]])))
    escaped = [f"'{cell}".replace("\r", " ") for cell in formulas]
    assert list(lines) == [escaped, ["-1.5", "+2e3", "-3", "plain, with comma", ""]]
