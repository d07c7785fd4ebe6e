"""The decorator of FedLane's compiled kernels.

Numba stores machine code on disk and compiles it again when the file of the kernel has changed. It does not notice a
change in a kernel of another file that the first one calls, so after an upgrade old and new code would be mixed. Here
the stamp of every kernel contains a digest of the sources of all kernels.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import sigutils

SOURCES = (
    *("compiled.py", "learning/cpu_kernels/*.py", "matching/*.py"),
    *("scheduling/lane_kernels.py", "scheduling/lane/*.py", "scheduling/rivals/best_round.py"),
)
"""The files that contain kernels, relative to the package."""

_njit: Any = njit  # its annotations lack some options
_types_of: Any = sigutils.normalize_signature


def kernel(usual: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a kernel that Python calls; its machine code is kept on disk.

    Args:
        usual: The types of the arguments in a simulation, for `compile_usual`; other types compile on their first call.
        options: Options of `numba.njit`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = _njit(cache=True, no_cfunc_wrapper=True, **options)(function)
        except RuntimeError:  # no folder can be written, so each process compiles its kernels
            dispatcher = _njit(no_cfunc_wrapper=True, **options)(function)
        dispatcher.usual_types = usual
        with contextlib.suppress(AttributeError):  # private to Numba, so it may change; a test notices it
            cache = dispatcher._cache._cache_file
            cache._source_stamp = (cache._source_stamp, sources_digest())
        return dispatcher

    return decorate


def part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a function that kernels call.

    It has no file on disk, since the code of a kernel contains that of its parts. With ``inline="always"`` it is not
    even compiled by itself.
    """
    decorator: Callable[[Callable[..., Any]], Any] = _njit(no_cfunc_wrapper=True, **options)
    return decorator


def compile_for_parent(*names: str) -> None:
    """Compile the kernels with these names, ``module:function``, for their usual types, and print each name when done.

    For a process whose standard input is a pipe from its parent: when the parent ends, so does the process.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name in names:
        module, function = name.split(":")
        compile_usual(getattr(importlib.import_module(module), function))
        print(name, flush=True)


def _end_with_parent() -> None:
    """Wait until the parent closes the pipe, which it also does by ending, and end this process."""
    while os.read(0, 1):
        pass
    os._exit(1)


def compile_usual(dispatcher: Any) -> None:
    """Compile a kernel for its usual types, or load it from the cache."""
    types, _ = _types_of(dispatcher.usual_types)  # a call looks for types in the cache, not text
    dispatcher.compile(types)


def kernel_name(dispatcher: Any) -> str:
    """Return the name of a kernel, ``module:function``."""
    return f"{dispatcher.py_func.__module__}:{dispatcher.py_func.__name__}"


@functools.cache
def sources_digest(package: Path = Path(__file__).parent) -> str:
    """Return a digest of the sources of all kernels."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(package.glob(pattern)):
            digest.update(f"{path.relative_to(package).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()
