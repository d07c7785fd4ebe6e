"""The notice that kernels are compiled: on the first run only, with the number of kernels."""

import pytest
from rich.console import Console

from fedlane import Scenario, Simulation
from fedlane.cli.compiling import Compilation, entry_points, is_cached
from fedlane.cli.display import Display
from fedlane.learning import cpu_kernels
from fedlane.learning.cpu_kernels import rows
from support.terminal import fedlane_process


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
