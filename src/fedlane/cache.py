"""The user's cache: downloads, and numbers that take seconds to compute."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlane.files import write_atomically


def cache_folder() -> Path:
    """Where FedLane keeps what it can get or compute again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedlane"


def remembered(
    purpose: str,
    key: Mapping[str, object],
    compute: Callable[[], list[float]],
    valid: Callable[[list[float]], bool],
) -> list[float]:
    """``compute()``, or what it gave before for this key, from a file of the user's cache.

    A file that is damaged, or whose numbers are not ``valid``, is computed again; a cache that cannot be written is
    done without.
    """
    text = json.dumps(key, sort_keys=True)
    path = cache_folder() / purpose / f"{_digest(text)[:32]}.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        values = [float(value) for value in stored["values"]]
        if stored["key"] == json.loads(text) and stored["digest"] == _digest(text + repr(values)) and valid(values):
            return values
    except (OSError, ValueError, KeyError, TypeError):
        pass
    values = [float(value) for value in compute()]
    content = json.dumps({"key": json.loads(text), "values": values, "digest": _digest(text + repr(values))})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode())
    return values


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
