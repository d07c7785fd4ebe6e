"""Downloads that resume after a lost connection and are verified before they get their final name."""

import gzip
import hashlib
import http.client
import os
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from fedlane.validate import InputError

ATTEMPTS = 4
TIMEOUT_S = 30.0
_PIECE = 1 << 20


def fetch(url: str, folder: Path) -> Path:
    """Download ``url`` to ``folder/NAME.part``, resuming an earlier attempt, and return that path."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"download address must begin with http:// or https://, got '{url}'")
    part = folder / f"{url.rsplit('/', 1)[1]}.part"
    problem: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(0.2 * 2**attempt)
        try:
            _fetch_rest(url, part)
            return part
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # nothing left to send: the part is complete, or stale
                return part
            problem = error
            if 400 <= error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = error
    raise InputError(f"download of {url} failed: {problem}; the next attempt resumes it") from problem


def _fetch_rest(url: str, part: Path) -> None:
    received_before = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={received_before}-"} if received_before else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        resumed = response.status == 206
        expected = response.headers.get("Content-Length")
        received = 0
        with part.open("ab" if resumed else "wb") as file:
            while piece := response.read(_PIECE):
                file.write(piece)
                received += len(piece)
        if expected is not None and received < int(expected):
            raise http.client.IncompleteRead(b"", int(expected) - received)


def unpack(part: Path, folder: Path, wanted: Mapping[str, tuple[int, str]]) -> None:
    """Extract the wanted files (name -> size and SHA-256 of the content) from a .gz or .tar.gz, verify and rename them.

    If a checksum is wrong, no file gets its final name and the download is deleted, so the next attempt starts over.
    """
    temporary = {name: folder / f".{name}.{os.getpid()}" for name in wanted}
    try:
        _extract(part, {name: (temporary[name], size) for name, (size, _) in wanted.items()})
        for name, (_, sha256) in wanted.items():
            with temporary[name].open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise InputError(f"download {part.name.removesuffix('.part')}: the checksum of {name} is wrong")
        for name in wanted:
            temporary[name].replace(folder / name)
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"download {part.name.removesuffix('.part')} cannot be unpacked: {error}") from error
    finally:
        part.unlink(missing_ok=True)
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _extract(part: Path, targets: Mapping[str, tuple[Path, int]]) -> None:
    if part.name.endswith(".tar.gz.part"):
        with tarfile.open(part, "r:gz") as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name, (target, size) in targets.items():
                source = archive.extractfile(members[name])
                assert source is not None
                with source:
                    _copy(source, target, size)
    else:
        ((target, size),) = targets.values()
        with gzip.open(part, "rb") as compressed:
            _copy(compressed, target, size)


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, size: int) -> None:
    """Copy at most one byte more than ``size``, so that a wrong file is noticed and fills no disk."""
    left = size + 1
    with target.open("wb") as file:
        while left and (piece := source.read(min(_PIECE, left))):
            file.write(piece)
            left -= len(piece)
