"""pskd inside of other people's trainers: a file for each, which imports its library; nothing is imported here."""

from __future__ import annotations

from pskd.errors import installed_by


def missing(module: str, extra: str, error: ImportError) -> ModuleNotFoundError:
    """What to raise where the library of an integration is not installed: one line that names the extra."""
    return ModuleNotFoundError(f"pskd.integrations.{module} needs {error.name}: {installed_by(extra)}", name=error.name)
