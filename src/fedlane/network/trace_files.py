"""Finding and reading the files of traces: text, compressed text, and folders of them."""

import contextlib
import importlib.resources
import lzma
import os
from pathlib import Path

from fedlane.files import read_regular
from fedlane.validate import InputError, printable

MAX_BYTES = 2**26
"""Largest text of a trace file, uncompressed: about 80 minutes of a saturated 20 Mbit/s link in Mahimahi's format."""


def find_trace(source: str) -> Path:
    """Look a file or folder up as given, in the folder FEDLANE_DATA, in its subfolder traces, and in the package.

    Raises:
        InputError: It is in none of these places.
    """
    roots = [Path()]
    if os.environ.get("FEDLANE_DATA"):
        roots += [Path(os.environ["FEDLANE_DATA"]), Path(os.environ["FEDLANE_DATA"]) / "traces"]
    roots.append(Path(str(importlib.resources.files("fedlane").joinpath("data", "traces"))))
    for root in roots if source else []:
        with contextlib.suppress(OSError):  # a name that is too long, a folder that may not be entered
            if (root / source).exists():
                return root / source
    raise InputError(f"trace {printable(source)} does not exist, here or in the folder FEDLANE_DATA (docs/worlds.md)")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, decompressed if its name ends in .xz, without blank lines and # comments.

    Raises:
        InputError: The file cannot be read, is not text, is empty, or is larger than `MAX_BYTES`.
    """
    try:
        content = read_regular(path, MAX_BYTES)
        if path.suffix == ".xz":
            content = _decompressed(content)
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"cannot read the trace {printable(str(path))}: {reason}") from error
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise InputError(f"cannot read the trace {printable(str(path))}: it is empty")
    return lines


def _decompressed(content: bytes) -> bytes:
    """Decompress an .xz file; one that expands beyond `MAX_BYTES` or ends early is refused."""
    decompressor = lzma.LZMADecompressor()
    text = decompressor.decompress(content, max_length=MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES:,} bytes when decompressed")
    if not decompressor.eof:
        raise EOFError("the compressed file ends early")
    return text
