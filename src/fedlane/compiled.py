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
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import sigutils

SOURCES = (
    "compiled.py",
    "learning/cpu_kernels/*.py",
    "matching/*.py",
    "scheduling/lane_kernels.py",
    "scheduling/lane/*.py",
)
"""The files that contain kernels, relative to the package."""

_njit: Any = njit  # its annotations lack some options
_types_of: Any = sigutils.normalize_signature


def kernel(usual: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a kernel that Python calls; its machine code is kept on disk.

    Args:
        usual: The types of the arguments in a simulation, for `compile_ahead`; other types compile on their first call.
        options: Options of `numba.njit`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = _njit(cache=True, no_cfunc_wrapper=True, **options)(function)
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


def compile_ahead(kernels: Iterable[Any]) -> None:
    """Compile kernels for their usual types, those of training here and the others in a second process.

    Numba compiles one function at a time in a process, so only a second process can use a second core. If it fails,
    its kernels are compiled on their first call. Without a second core, or with kernels of one kind only, this process
    compiles all of them.
    """
    ordered = sorted(kernels, key=_kernel_name)
    here = [kernel for kernel in ordered if _kernel_name(kernel).startswith("fedlane.learning.")]
    elsewhere = [kernel for kernel in ordered if kernel not in here]
    process = None
    if here and elsewhere and len(os.sched_getaffinity(0)) > 1:
        with contextlib.suppress(OSError):
            process = _compiling_process(map(_kernel_name, elsewhere))
    try:
        for dispatcher in here if process else ordered:
            _compile_usual(dispatcher)
        if process:
            process.wait()
    finally:
        if process:
            process.kill()
            process.wait()


def compile_named(*names: str) -> None:
    """Compile the kernels with these names, ``module:function``, for their usual types."""
    for name in names:
        module, function = name.split(":")
        _compile_usual(getattr(importlib.import_module(module), function))


def _compile_usual(dispatcher: Any) -> None:
    types, _ = _types_of(dispatcher.usual_types)  # a call looks for types in the cache, not text
    dispatcher.compile(types)


def _kernel_name(dispatcher: Any) -> str:
    return f"{dispatcher.py_func.__module__}:{dispatcher.py_func.__name__}"


def _compiling_process(names: Iterable[str]) -> "subprocess.Popen[bytes]":
    code = "import sys; from fedlane.compiled import compile_named; compile_named(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    nothing = subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", code, *names]
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment)


@functools.cache
def sources_digest(package: Path = Path(__file__).parent) -> str:
    """Return a digest of the sources of all kernels."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(package.glob(pattern)):
            digest.update(f"{path.relative_to(package).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()
