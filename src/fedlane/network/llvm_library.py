"""The LLVM library with which Sionna RT computes on a processor: where it is, and whether it is new enough.

Dr.Jit, on which Sionna RT is built, loads the library that the variable DRJIT_LIBLLVM_PATH names. LLVM 15 and 16 crash
in it, so an older one is never used.
"""

import ctypes.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from fedlane.validate import InputError, printable

VARIABLE = "DRJIT_LIBLLVM_PATH"
OLDEST = 19
"""Oldest version of LLVM that is used."""
_FOLDERS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/llvm-*/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/homebrew/opt/llvm*/lib",
    "/usr/local/opt/llvm*/lib",
)


def use_llvm() -> None:
    """Set DRJIT_LIBLLVM_PATH to a library of LLVM, unless it is set or an NVIDIA card makes it unnecessary.

    Raises:
        InputError: No library is new enough.
    """
    given = os.environ.get(VARIABLE)
    if given:
        version = llvm_version(Path(given))
        if not Path(given).exists() or (version is not None and version < OLDEST):
            reason = "does not exist" if version is None or version >= OLDEST else f"is LLVM {version}"
            raise InputError(f"{VARIABLE} names {printable(given)}, which {reason}: LLVM {OLDEST} or newer is needed")
        return
    library = newest_fit(_installed())
    if library is not None:
        os.environ[VARIABLE] = str(library)
    elif ctypes.util.find_library("cuda") is None:
        raise InputError(
            f"fedlane city needs LLVM {OLDEST} or newer (on Debian the package libllvm{OLDEST}); "
            f"{VARIABLE} may name the library"
        )


def llvm_version(library: Path) -> int | None:
    """Return the major version that a library's name states; None if it states none."""
    for name in (library.name, library.resolve().name):
        match = re.fullmatch(r"libLLVM(?:-|\.so\.|\.)(\d+)[\d.]*(?:\.so[\d.]*|\.dylib)?", name)
        if match:
            return int(match[1])
    return None


def newest_fit(libraries: Iterable[Path]) -> Path | None:
    """Return the library with the oldest version that is new enough, which is the best tested; None without one."""
    versions = {library: llvm_version(library) for library in libraries}
    fits = [(version, str(library)) for library, version in versions.items() if version and version >= OLDEST]
    return Path(min(fits)[1]) if fits else None


def _installed() -> list[Path]:
    """Return the LLVM libraries in the usual folders."""
    folders = [*_FOLDERS, str(Path(sys.prefix) / "lib")]
    root = Path("/")
    return [path for folder in folders for path in root.glob(f"{folder.lstrip('/')}/libLLVM*") if path.is_file()]
