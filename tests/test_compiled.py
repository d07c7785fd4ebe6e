"""Kernels on disk: a change in any kernel's source makes all stale, and runs use the usual types."""

import re
import shutil
from pathlib import Path

import numba
import numpy as np
import pytest

import fedlane
from fedlane import Scenario, Simulation, compiled
from fedlane.cli.compiling import entry_points
from fedlane.learning import cpu_kernels
from fedlane.matching import bottleneck, max_sum_matching, small
from fedlane.scheduling import lane_kernels
from fedlane.scheduling.lane import delay_rows, looking, search
from fedlane.scheduling.rivals import best_round

PACKAGE = Path(fedlane.__file__).parent
KERNELS = [
    *(cpu_kernels.add_move_and_normals, cpu_kernels.gather_images, cpu_kernels.mlp_tail),
    *(cpu_kernels.poisson_rows, cpu_kernels.sample_rows),
    *(bottleneck.solve_batch, bottleneck.greedy_batch, small.max_sum_small, lane_kernels.improve_batch),
    *(delay_rows.fill_rows, looking.fill_values, search.improve_starts),
    best_round.search_levels,
]


@pytest.mark.parametrize("name", ["matching/assignment.py", "learning/cpu_kernels/rows.py", "compiled.py"])
def test_a_change_in_any_source_of_kernels_changes_the_digest(tmp_path, name):
    copy = tmp_path / "fedlane"
    for folder in ("matching", "scheduling", "learning/cpu_kernels"):
        shutil.copytree(PACKAGE / folder, copy / folder)
    shutil.copy(PACKAGE / "compiled.py", copy)
    before = compiled.sources_digest.__wrapped__(copy)
    assert before == compiled.sources_digest()
    (copy / name).write_text((copy / name).read_text() + "# a change\n")
    assert compiled.sources_digest.__wrapped__(copy) != before


def test_every_kernel_is_stamped_with_the_digest():
    """The stamp is private to Numba; this fails when Numba changes it."""
    for kernel in KERNELS:
        assert kernel._cache._cache_file._source_stamp[1] == compiled.sources_digest()


@pytest.mark.slow
def test_machine_code_of_other_sources_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    decorate = compiled.kernel("(int64,)")
    digests = iter(["old", "old", "new"])
    monkeypatch.setattr(compiled, "sources_digest", lambda: next(digests))
    hits = []
    for _ in range(3):
        successor = decorate(_successor)
        assert successor(1) == 2
        hits.append(sum(successor.stats.cache_hits.values()))
    assert hits == [0, 1, 0]


def _successor(number):
    return number + 1


def test_all_kernels_are_in_files_that_the_digest_covers():
    covered = {path for pattern in compiled.SOURCES for path in PACKAGE.glob(pattern)}
    uses = re.compile(r"^@(kernel|part|njit|numba)|import njit", re.MULTILINE)
    assert {path for path in PACKAGE.rglob("*.py") if uses.search(path.read_text(encoding="utf-8"))} <= covered


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["rigorous", "paper"])
def test_a_run_uses_the_usual_types_only(mechanism):
    """Otherwise the kernels that were compiled ahead would be compiled again."""
    scenario = Scenario.load("quickstart").with_values({"privacy.mechanism": mechanism, "rounds": 2})
    simulation = Simulation(scenario, "lane", [0])
    kernels = entry_points(simulation)
    before = {kernel: set(kernel.signatures) for kernel in kernels}
    simulation.play()
    for kernel in kernels:
        usual, _ = numba.core.sigutils.normalize_signature(kernel.usual_types)
        assert set(kernel.signatures) - before[kernel] <= {usual}
        assert usual in kernel.signatures


def test_the_small_solver_agrees_with_the_general_one():
    """To the bit: ties, infinite values, and clients and channels that may not be used."""
    rng = np.random.default_rng(17)
    for trial in range(200):
        batch, clients, channels = rng.integers(1, 4), *rng.integers(1, 18, 2)
        weights = rng.integers(0, 4, (batch, clients, channels)) * (1e300 if trial % 11 == 0 else 1.0)
        if trial % 2:
            weights += rng.normal(size=weights.shape)
        if trial % 5 == 0:
            weights[rng.random(weights.shape) < 0.1] = np.inf
        if trial % 3 == 0:
            weights[rng.random((batch, clients)) < 0.3] = -np.inf
        if trial % 7 == 0:
            weights[:, :, rng.random(channels) < 0.3] = -np.inf
        assert small.is_complete(weights)
        assert np.array_equal(small.max_sum_small(weights), bottleneck.solve_batch(weights, False))


def test_a_forbidden_pair_needs_the_general_solver():
    weights = np.array([[[3.0, -np.inf], [5.0, 1.0]]])
    assert not small.is_complete(weights)
    assert max_sum_matching(weights).tolist() == [[0, 1]]
