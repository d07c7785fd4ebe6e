"""The notice that Numba is compiling kernels, which takes half a minute on the first run of a version.

Numba stores compiled kernels in its cache folder and announces each real compilation as an event, so a run that finds
its kernels in the cache shows nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from rich.console import Console

    from fedlane.simulation.run import Simulation


class Compilation:
    """Counts the kernels that are compiled.

    Args:
        show: Called with the number of the kernel whose compilation begins, from 1, and the number of kernels in all.
    """

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show
        self._expected: set[Any] = set()
        self._begun: set[Any] = set()

    def expect(self, entry_points: Iterable[Any]) -> None:
        """Count the kernels that are not in the cache among these and those that they call."""
        self._expected |= {kernel for kernel in reachable_kernels(entry_points) if not is_cached(kernel)}

    def begin(self, kernel: Any) -> None:
        """Count a kernel whose compilation begins; only its first signature counts."""
        if kernel not in self._begun:
            if kernel not in self._expected:
                self.expect([kernel])
            self._begun.add(kernel)
            self._show(len(self._begun), len(self._expected | self._begun))


@contextlib.contextmanager
def watch_compilation(show: Callable[[int, int], None]) -> Iterator[Compilation]:
    """Call ``show`` whenever Numba begins to compile one of FedLane's kernels, see `Compilation`."""
    from numba.core import event

    compilation = Compilation(show)

    class Listener(event.Listener):
        """Passes FedLane's kernels on; Numba also compiles small helpers."""

        def on_start(self, event: Any) -> None:
            kernel = event.data["dispatcher"]
            if kernel.py_func.__module__.startswith("fedlane."):
                compilation.begin(kernel)

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield compilation


@contextlib.contextmanager
def announce_compilation(console: "Console", *, quiet: bool = False) -> Iterator[None]:
    """Print one line when the first kernel is compiled, for commands that show other progress."""

    def show(number: int, total: int) -> None:
        if number == 1 and not quiet:
            console.print("Compiling kernels (first run only)", highlight=False, soft_wrap=True)

    with watch_compilation(show):
        yield


def progress_line(number: int, total: int) -> str:
    """Return the line that shows the progress of compilation."""
    return f"Compiling kernels (first run only): {number} of {total}"


def entry_points(simulation: "Simulation") -> set[Any]:
    """Return the kernels that a simulation calls from Python."""
    policy = getattr(simulation.policy, "single", simulation.policy)
    methods = [method for kind in type(policy).__mro__ for method in vars(kind).values()]
    kernels = {kernel for method in methods if isinstance(method, FunctionType) for kernel in _called(method)}
    federation = simulation.federation
    if federation is not None and federation.device.type == "cpu":
        from fedlane.learning import cpu_kernels

        poisson = federation.sampling.poisson
        kernels |= {cpu_kernels.gather_images, cpu_kernels.poisson_rows if poisson else cpu_kernels.sample_rows}
        if simulation.scenario.learning.model == "mlp":
            kernels.add(cpu_kernels.mlp_tail)
        if federation.mechanism.step_noise.any() or federation.mechanism.upload_noise.any():
            kernels.add(cpu_kernels.add_move_and_normals)
    return kernels


def reachable_kernels(kernels: Iterable[Any]) -> set[Any]:
    """Return kernels and all kernels that they call, directly or not."""
    reached: set[Any] = set()
    waiting = list(kernels)
    while waiting:
        kernel = waiting.pop()
        if kernel not in reached:
            reached.add(kernel)
            waiting += _called(kernel.py_func)
    return reached


def is_cached(kernel: Any) -> bool:
    """Whether Numba's cache holds the kernel as its source is now, for any signature."""
    with contextlib.suppress(AttributeError, OSError, EOFError, ValueError):  # private to Numba, so it may change
        return bool(kernel._cache._cache_file._load_index())
    return False


def _called(function: FunctionType, seen: set[FunctionType] | None = None) -> set[Any]:
    """Return the kernels that a function calls directly or through other functions of the package, by name."""
    from numba.core.dispatcher import Dispatcher

    seen = set() if seen is None else seen
    seen.add(function)
    kernels: set[Any] = set()
    names = _names(function.__code__)
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        if module.__name__.startswith("fedlane."):
            values += [vars(module)[name] for name in names if name in vars(module)]
    for value in values:
        if isinstance(value, Dispatcher):
            kernels.add(value)
        elif isinstance(value, FunctionType) and value.__module__.startswith("fedlane.") and value not in seen:
            kernels |= _called(value, seen)
    return kernels


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code uses, nested functions included."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, nested))
