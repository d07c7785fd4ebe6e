"""The user's cache of downloads and of results that take seconds to compute."""

import contextlib
import functools
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlane.files import read_regular, write_atomically

KEY_BYTES = 32
"""Bytes of the secret with which cached numbers are sealed."""


def cache_folder() -> Path:
    """Return the folder for files that can be downloaded or computed again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedlane"


def remembered(
    purpose: str,
    key: Mapping[str, object],
    compute: Callable[[], list[float]],
    valid: Callable[[list[float]], bool],
    *,
    sealed: bool = False,
) -> list[float]:
    """Return ``compute()``, or its earlier result for the same key from the user's cache.

    If the cached file is damaged or its numbers are not ``valid``, they are computed again. A cache that cannot be
    written is ignored.

    Args:
        purpose: Folder of the cache.
        key: Everything that the result depends on, versions of libraries included.
        compute: Computes the result.
        valid: Whether cached numbers may be used.
        sealed: Whether only files that this user wrote are used (see `seal_key`); for numbers that cannot be checked.
    """
    text = json.dumps(key, sort_keys=True)
    path = cache_folder() / purpose / f"{_digest(text)[:32]}{'.sealed' if sealed else ''}.json"
    secret = seal_key() if sealed else b""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        values = [float(value) for value in stored["values"]]
        intact = stored["key"] == json.loads(text) and _is_digest(stored["digest"], text + repr(values), secret)
        if intact and valid(values):
            return values
    except (OSError, ValueError, KeyError, TypeError):
        pass
    values = [float(value) for value in compute()]
    content = json.dumps({"key": json.loads(text), "values": values, "digest": _digest(text + repr(values), secret)})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode())
    return values


def seal_key() -> bytes:
    """Return this user's secret, with which cached numbers are sealed.

    It is kept outside of the cache, so files of a cache that comes from somebody else are not used. It protects from
    nobody who can read this user's private files. If it cannot be kept, every process has a secret of its own, and
    sealed numbers are computed again.
    """
    try:
        base = os.environ.get("XDG_STATE_HOME")
        return _kept_key((Path(base) if base else Path.home() / ".local" / "state") / "fedlane" / "cache.key")
    except (OSError, RuntimeError):  # pathlib raises a RuntimeError for a user without a home
        return _process_key()


@functools.cache
def _kept_key(path: Path) -> bytes:
    """Return the secret in a file that only this user can read, after creating it if there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(temporary, path)
        finally:
            os.close(file)
            temporary.unlink()
    content, status = read_regular(path, KEY_BYTES), path.stat()
    if len(content) != KEY_BYTES or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{path} is not a secret of this user")
    return content


@functools.cache
def _process_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def _digest(text: str, secret: bytes = b"") -> str:
    if secret:
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()


def _is_digest(stored: object, text: str, secret: bytes) -> bool:
    return isinstance(stored, str) and hmac.compare_digest(stored.encode(), _digest(text, secret).encode())
