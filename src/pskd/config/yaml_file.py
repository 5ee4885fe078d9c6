"""YAML files of settings: read safely, and what is wrong is said in one line with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pskd.errors import PskdError

LARGEST_FILE = 1_000_000  # bytes of settings
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is that in C, ten times as fast


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PskdError(f"{path}: larger than {LARGEST_FILE:,} bytes, which no settings are")
        tree = yaml.load(path.read_text(encoding="utf-8"), SAFE_LOADER)
    except RecursionError:
        raise PskdError(f"{path}: not valid settings (nested too deeply)") from None
    except OSError as error:
        raise PskdError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise PskdError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    except ValueError as error:  # a date or a number that YAML itself trips over
        raise PskdError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(tree, dict):
        raise PskdError(f"{path}: expected settings as 'key: value' lines, found {type(tree).__name__}")
    return tree
