"""A second process that compiles kernels while the first one prepares a run.

Numba compiles one function at a time in a process, so only a second process can use a second core. It hands the machine
code over through Numba's cache folder.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable

_CODE = "import sys; from fedlane.compiled import compile_for_parent; compile_for_parent(*sys.argv[1:])"


class CompilingProcess:
    """Compiles kernels in a second process; a context manager that ends the process.

    The process also ends by itself when this one does, whatever the reason. If it fails, its kernels are compiled on
    their first call.

    Attributes:
        kernels: Names of the kernels that the process was started with, ``module:function``.
    """

    def __init__(self) -> None:
        self.kernels: set[str] = set()
        self._done: set[str] = set()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "CompilingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, even if it is not done."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with process:  # closes the pipes and waits
            pass

    def start(self, kernels: Iterable[str]) -> bool:
        """Start the process, unless there are no kernels or no second core; return whether it compiles these kernels.

        The kernels are compiled in the given order. A process is started at most once.
        """
        names = list(kernels)
        if self._process is None and not self.kernels and names and second_core():
            with contextlib.suppress(OSError):
                self._process = _started(names)
                self.kernels.update(names)
        return bool(names) and self.kernels.issuperset(names)

    def wait_for(self, kernels: Iterable[str]) -> None:
        """Wait until the process has compiled those of the kernels that it was started with, or has ended."""
        missing = self.kernels.intersection(kernels) - self._done
        while missing and self._process is not None and self._process.stdout is not None:
            line = self._process.stdout.readline()
            if not line:
                return
            self._done.add(line.strip())
            missing.discard(line.strip())


def second_core() -> bool:
    """Whether this process may use more than one core."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


def _started(names: Iterable[str]) -> "subprocess.Popen[str]":
    """Start the process; it writes the name of each kernel that it has compiled, and ends when its input is closed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", _CODE, *names]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment, text=True)
