"""Line-aligned text files of two languages, and Multi30k, which comes as such."""

from __future__ import annotations

from pathlib import Path

from pskd.workbench import registry
from pskd.workbench.data.text.pairs import TextData, folder_of, read_pair


@registry.texts.register("files")
def load_files(
    root: str | None = None, *, source: str, target: str, test: str | None = None, on_bad: str = "refuse"
) -> TextData:
    """train.de and train.en, test.* and, if there is one, val.*, plain or .gz; ``test`` names other test files."""
    return _read(folder_of("files", root), (source, target), test or "test", on_bad)


@registry.texts.register("multi30k", "Multi30k")
def load_multi30k(
    root: str | None = None, *, source: str, target: str, test: str | None = None, on_bad: str = "refuse"
) -> TextData:
    """Task 1 as published; its test set is that of 2016."""
    folder = folder_of("multi30k", root)
    inner = folder / "multi30k"
    return _read(inner if inner.is_dir() else folder, (source, target), test or "test_2016_flickr", on_bad)


def _read(root: Path, languages: tuple[str, str], test: str, on_bad: str) -> TextData:
    names = [f"val.{language}{end}" for language in languages for end in ("", ".gz")]
    stems = ["train", test, *(["val"] if any((root / name).exists() for name in names) else [])]
    return TextData(*(read_pair(root, stem, languages, on_bad) for stem in stems))
