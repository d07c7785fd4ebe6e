"""The notice that Numba is compiling kernels, which takes several seconds on the first run of a version.

Numba stores compiled kernels in its cache folder and announces each real compilation as an event, so a run that finds
its kernels in the cache shows nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from fedlane.cli.compiling_process import CompilingProcess

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from rich.console import Console

    from fedlane.scenario import Scenario
    from fedlane.scheduling.policy import BatchPolicy
    from fedlane.simulation.run import Simulation


NOTICE = "Compiling kernels (first run only)"


class Compilation:
    """Counts the kernels that are compiled.

    Args:
        show: Called with the number of the kernel whose compilation begins, from 1, and the number of kernels in all.
        process: A second process that may have begun to compile kernels; the user has been told about these.
    """

    def __init__(self, show: Callable[[int, int], None], process: CompilingProcess | None = None) -> None:
        self._show = show
        self._process = process or CompilingProcess()
        self._expected: set[Any] = set()
        self._begun: set[Any] = set()

    def expect(self, entry_points: Iterable[Any]) -> None:
        """Count the kernels that are not in the cache among these."""
        self._expected |= {kernel for kernel in entry_points if not is_cached(kernel)}

    def compile_ahead(self, entry_points: Iterable[Any]) -> None:
        """Compile the kernels that are not in the cache among these.

        If there are kernels of training and others, this process compiles the former and a second process the latter.
        """
        from fedlane.compiled import compile_usual, kernel_name

        names = {kernel: kernel_name(kernel) for kernel in entry_points}
        told = {kernel for kernel in names if names[kernel] in self._process.kernels}
        self._begun |= told
        self._expected |= told
        self.expect(names)
        here = sorted(self._expected - told, key=kernel_name)
        training = [kernel for kernel in here if names[kernel].startswith("fedlane.learning.")]
        others = [kernel for kernel in here if kernel not in training and has_file(kernel)]
        if training and self._process.start(names[kernel] for kernel in others):
            here = [kernel for kernel in here if kernel not in others]
            for kernel in others:
                self.begin(kernel)
        for kernel in here:
            self.begin(kernel)
            compile_usual(kernel)
        self._process.wait_for(names.values())

    def begin(self, kernel: Any) -> None:
        """Count a kernel whose compilation begins; only its first signature counts."""
        if kernel not in self._begun:
            self._begun.add(kernel)
            self._show(len(self._begun), len(self._expected | self._begun))


@contextlib.contextmanager
def watch_compilation(
    show: Callable[[int, int], None], process: CompilingProcess | None = None
) -> Iterator[Compilation]:
    """Call ``show`` whenever Numba begins to compile one of FedLane's kernels, see `Compilation`."""
    from numba.core import event

    compilation = Compilation(show, process)

    class Listener(event.Listener):
        """Passes FedLane's kernels on; their parts and Numba's helpers do not count."""

        def on_start(self, event: Any) -> None:
            kernel = event.data["dispatcher"]
            if hasattr(kernel, "usual_types"):
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
            console.print(NOTICE, highlight=False, soft_wrap=True)

    with watch_compilation(show):
        yield


def progress_line(number: int, total: int) -> str:
    """Return the line that shows the progress of compilation."""
    return f"{NOTICE}: {number} of {total}"


def entry_points(simulation: "Simulation") -> set[Any]:
    """Return the kernels that a simulation calls from Python."""
    kernels = policy_kernels(simulation.policy, simulation.scenario)
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


def policy_kernels(policy: "BatchPolicy", scenario: "Scenario") -> set[Any]:
    """Return the kernels that a policy calls from Python in a scenario."""
    from fedlane.matching.bottleneck import solve_batch
    from fedlane.matching.small import is_small, max_sum_small

    single = getattr(policy, "single", policy)
    methods = [method for kind in type(single).__mro__ for method in vars(kind).values()]
    kernels = {kernel for method in methods if isinstance(method, FunctionType) for kernel in _called(method)}
    if max_sum_small in kernels:  # `max_sum_batch` calls one of the two, depending on the size of the network
        kernels.discard(solve_batch if is_small(scenario.network.clients, scenario.network.channels) else max_sum_small)
    return kernels


def start_early(process: CompilingProcess, policies: Iterable["BatchPolicy"], scenario: "Scenario") -> bool:
    """Start to compile the policies' kernels in a second process, unless they are in the cache.

    Returns:
        Whether there is something to compile and a second core to do it.
    """
    from fedlane.compiled import kernel_name

    kernels = [kernel for policy in policies for kernel in sorted(policy_kernels(policy, scenario), key=kernel_name)]
    missing = [kernel for kernel in kernels if has_file(kernel) and not is_cached(kernel)]
    return process.start(dict.fromkeys(map(kernel_name, missing)))


def has_file(kernel: Any) -> bool:
    """Whether Numba can store the kernel, so that another process can compile it for this one."""
    return hasattr(kernel._cache, "_cache_file")


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
        if isinstance(value, Dispatcher) and hasattr(value, "usual_types"):
            kernels.add(value)
        elif isinstance(value, FunctionType) and value.__module__.startswith("fedlane.") and value not in seen:
            kernels |= _called(value, seen)
    return kernels


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code uses, nested functions included."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, nested))
