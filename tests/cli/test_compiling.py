"""The notice that kernels are compiled: on the first run only, with the number of kernels."""

import sys

import pytest
from numba.core import event
from numba.core.dispatcher import Dispatcher
from rich.console import Console

from fedlane import Scenario, Simulation
from fedlane.cli.compiling import Compilation, announce_compilation, entry_points, is_cached, policy_kernels
from fedlane.cli.display import Display
from fedlane.compiled import compile_usual
from fedlane.learning import cpu_kernels
from fedlane.learning.cpu_kernels import rows
from fedlane.scheduling import policies
from support.terminal import fedlane_process

OWN_POLICIES = sorted(
    f"{name}:T0=1" if name.startswith("mamab-") else name
    for name, policy in policies().items()
    if policy.__module__.startswith("fedlane.") and "losses" not in policy.requires
)
"""FedLane's policies that run without learning; those of the paper explore for one round only."""


def names(kernels):
    return {kernel.py_func.__name__ for kernel in kernels}


@pytest.mark.parametrize(
    ("policy", "kernels"),
    [
        ("random", set()),
        ("mamab-gmba", {"greedy_batch"}),
        ("genie", {"improve_starts", "max_sum_small"}),
        ("lane", {"fill_rows", "fill_values", "improve_starts", "max_sum_small"}),
    ],
)
def test_the_kernels_of_a_policy_are_known_before_the_run(policy, kernels):
    simulation = Simulation(Scenario.load("quickstart"), policy, [0], learning=False)
    assert names(entry_points(simulation)) == kernels


def wrapped(kernel, called):
    """Return a function that notes the kernel's name and calls it."""

    def call(*arguments):
        called.add(kernel.py_func.__name__)
        return kernel(*arguments)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("policy", OWN_POLICIES)
def test_a_policy_calls_no_kernel_that_is_not_known_before_the_run(policy, monkeypatch):
    simulation = Simulation(Scenario.load("quickstart"), policy, [0], learning=False)
    known, called = policy_kernels(simulation.policy, simulation.scenario), set()
    for kernel in known:
        compile_usual(kernel)  # before the names in its own module are replaced
    modules = [module for name, module in sys.modules.items() if name.startswith("fedlane.")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, Dispatcher) and hasattr(value, "usual_types"):
                monkeypatch.setattr(module, name, wrapped(value, called))
    for _ in range(12):
        simulation.step()
    assert called <= names(known)
    assert bool(called) == bool(known)


@pytest.mark.parametrize(
    ("mechanism", "kernels"),
    [
        ("rigorous", {"poisson_rows", "add_move_and_normals"}),
        ("paper", {"sample_rows", "add_move_and_normals"}),
        ("none", {"sample_rows"}),
    ],
)
def test_the_kernels_of_training_are_known_before_the_run(mechanism, kernels):
    scenario = Scenario.load("quickstart").with_values({"privacy.mechanism": mechanism})
    simulation = Simulation(scenario, "random", [0], learning=True)
    assert names(entry_points(simulation)) == {*kernels, "gather_images", "mlp_tail"}


@pytest.mark.slow
def test_a_large_network_needs_the_general_solver():
    scenario = Scenario.load("quickstart").with_values({"network.clients": 18})
    simulation = Simulation(scenario, "lane", [0], learning=False)
    assert names(entry_points(simulation)) == {"fill_rows", "fill_values", "improve_starts", "solve_batch"}


def test_a_kernel_counts_once_and_an_unexpected_one_adds_to_the_total(monkeypatch):
    monkeypatch.setattr("fedlane.cli.compiling.is_cached", lambda kernel: False)
    shown = []
    compilation = Compilation(lambda number, total: shown.append((number, total)))
    compilation.expect([cpu_kernels.sample_rows])
    for kernel in (cpu_kernels.sample_rows, cpu_kernels.sample_rows, cpu_kernels.gather_images):
        compilation.begin(kernel)
    assert shown == [(1, 1), (2, 2)]


def test_cached_kernels_are_not_counted(monkeypatch):
    monkeypatch.setattr("fedlane.cli.compiling.is_cached", lambda kernel: kernel is cpu_kernels.gather_images)
    shown = []
    compilation = Compilation(lambda number, total: shown.append((number, total)))
    compilation.expect([cpu_kernels.sample_rows, cpu_kernels.gather_images])
    compilation.begin(cpu_kernels.sample_rows)
    assert shown == [(1, 1)]


def test_a_terminal_shows_the_count_in_place():
    console = Console(force_terminal=True, width=80, height=24)
    with console.capture() as capture, Display(console) as display, display.preparing("lane"):
        display.compiling(3, 11)
        display._status._live.refresh()
    assert "Compiling kernels (first run only): 3 of 11" in capture.get()


@pytest.mark.parametrize(("quiet", "lines"), [(False, ["Compiling kernels (first run only)"]), (True, [])])
def test_outside_a_terminal_compilation_is_one_line_or_nothing_if_asked_to_be_quiet(quiet, lines):
    console = Console(force_terminal=False, width=80)
    with console.capture() as capture, Display(console, quiet=quiet) as display, display.preparing("lane"):
        for number in (1, 2):
            display.compiling(number, 2)
    assert capture.get().splitlines() == lines


@pytest.mark.parametrize(("quiet", "lines"), [(False, ["Compiling kernels (first run only)"]), (True, [])])
def test_commands_with_other_progress_say_once_that_they_compile_or_nothing_if_quiet(quiet, lines):
    console = Console(force_terminal=False, width=80)
    with console.capture() as capture, announce_compilation(console, quiet=quiet):
        for kernel in (cpu_kernels.sample_rows, cpu_kernels.gather_images):
            with event.trigger_event("numba:compile", data={"dispatcher": kernel}):
                pass
    assert capture.get().splitlines() == lines


@pytest.mark.slow
def test_the_first_run_says_that_it_compiles_and_the_second_does_not(tmp_path):
    """With an empty cache folder; `random` and `softmax` need two small kernels."""
    options = ("--policy", "random", "--rounds", "2", "--set", "learning.model=softmax")
    notices = []
    for folder in ("first", "second"):
        words = ("run", *options, "--set", "privacy.mechanism=none", "--out", folder)
        result = fedlane_process(*words, cwd=tmp_path, code=0, env={"NUMBA_CACHE_DIR": str(tmp_path / "cache")})
        notices.append([line for line in result.stderr.splitlines() if "ompil" in line])
    assert notices == [["Compiling kernels (first run only)"], []]


def test_the_cache_is_read(monkeypatch):
    """`is_cached` uses a private part of Numba; this fails when Numba changes it."""
    index = rows.gather_images._cache._cache_file
    monkeypatch.setattr(index, "_load_index", lambda: {"signature": "file"})
    assert is_cached(rows.gather_images)
    monkeypatch.setattr(index, "_load_index", dict)
    assert not is_cached(rows.gather_images)
