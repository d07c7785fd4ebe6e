"""Files on disk: atomic replacement, durable names, arrays without pickle, and names made from text."""

import contextlib
import errno
import hashlib
import io
import math
import os
import re
import stat
import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedlane.validate import InputError

READ_ERRORS = (
    *(OSError, ValueError, KeyError, IndexError, EOFError, TypeError, AttributeError, RuntimeError),
    *(OverflowError, SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile, zlib.error),
)
"""Exceptions that reading a missing, damaged or foreign file of arrays may raise."""
MAX_EXPANSION, SPARE_BYTES = 20, 2**26
"""A compressed file of arrays is read if they need at most `MAX_EXPANSION` times its size and `SPARE_BYTES` more."""
LONGEST_NAME = 150
"""Bytes of a file name that is made from text; file systems allow 255."""


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: readers find either the old content or the new, even after a crash.

    Args:
        path: The file; its folder must exist.
        content: The new content.
        durable: Force content and name to disk before returning. Assumes a single writer: the temporary name is
            fixed, so that a crash leaves at most one temporary file, which the next write removes.

    Raises:
        OSError: The file could not be written; the old content is unchanged.
    """
    unique = "" if durable else f".{os.getpid()}-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}{unique}")
    try:
        with _created(temporary) as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def _created(path: Path) -> BinaryIO:
    """Create a file that nobody else has: what a crash or a stranger left there is removed, and no link is followed."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file to append to it, or create it. A link, a pipe or a device is refused.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "ab")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file")


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk; syncing a file forces only its content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path, *, writable: bool = False) -> BinaryIO:
    """Open an existing regular file without a buffer; a pipe or a device is refused at once instead of waited for.

    Args:
        path: The file.
        writable: Open it for writing as well.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if stat.S_ISREG(path.stat().st_mode):  # opening a device can have effects
        descriptor = os.open(path, flags)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "r+b" if writable else "rb", buffering=0)
        os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file")


def read_regular(path: Path, largest: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        largest: Largest size that is accepted, in bytes; None accepts any.

    Raises:
        OSError: The file cannot be read, is too large, or is not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {largest:,} are read")
        return file.read()


def load_arrays(path: Path, limit: int | None = None) -> dict[str, NDArray[Any]]:
    """Return all arrays of an npz file by name; pickled content is refused.

    Args:
        path: The file.
        limit: Bytes that the arrays may need in any case; None for no limit besides that of the file's size.

    Raises:
        One of `READ_ERRORS`: the file is missing, damaged, holds anything but plain arrays, or is much smaller than
            its arrays.
    """
    with open_regular(path) as raw, io.BufferedReader(raw) as file, zipfile.ZipFile(file) as archive:  # type: ignore[type-var]
        members = archive.infolist()
        needed = sum(member.file_size for member in members)
        largest = SPARE_BYTES + MAX_EXPANSION * os.fstat(file.fileno()).st_size
        largest = largest if limit is None else min(limit, largest)
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("it is compressed in a way that FedLane does not use")
        if needed > largest:
            raise ValueError(f"its arrays need {needed:,} bytes, at most {largest:,} are read")
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array of an archive, whose size must be the one in the archive's directory."""
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        shape, _, dtype = read_header[version](content)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds pickled objects, which are never read")
        if content.tell() + dtype.itemsize * math.prod(shape) != member.file_size:
            raise ValueError(f"{member.filename} does not have the size that its header states")
    with archive.open(member) as content:
        array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
        return array


def fitting_array(arrays: Mapping[str, NDArray[Any]], name: str, like: NDArray[Any]) -> NDArray[Any]:
    """Return an array of a checkpoint, which must have the shape of ``like`` and a type that fits it.

    Returns:
        The array, contiguous and of the type of ``like``.

    Raises:
        KeyError: The array is missing.
        InputError: The array has a different shape or type, or a number
            that the type cannot hold.
    """
    array = arrays[name]
    if array.shape != like.shape or not np.can_cast(array.dtype, like.dtype, "same_kind"):
        raise InputError(f"{name} must be {like.dtype} {like.shape}, got {array.dtype} {array.shape}")
    if array.size and array.dtype.kind in "iu" and like.dtype.kind in "iu":
        bounds = np.iinfo(like.dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise InputError(f"{name} must be {like.dtype}, got a number that does not fit")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, like.dtype)


def file_name(text: str) -> str:
    """Return a policy's or scenario's name in a form that is safe as part of a file name."""
    name = re.sub(r"[^\w.-]+", "-", text).strip(".-") or "unnamed"
    if len(name.encode()) > LONGEST_NAME:  # names that differ stay different
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = f"{name.encode()[: LONGEST_NAME - 13].decode(errors='ignore')}-{digest}"
    return name
