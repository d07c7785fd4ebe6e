"""Estimates of memory and time, and the refusal of runs that cannot fit."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fedlane.scenario import Scenario
from fedlane.scheduling import make_policy
from fedlane.simulation import footprint, trial
from fedlane.simulation.footprint import _container_bytes, check_memory, run_footprint
from fedlane.simulation.simulation import Simulation
from fedlane.validate import InputError

QUICKSTART = Scenario.load("quickstart")
check = partial(check_memory, available=lambda: 8e9)


def test_a_run_that_fits_is_accepted():
    assert check(QUICKSTART, make_policy("lane"), 20, learning=True).total < 2.5e9


@pytest.mark.parametrize(
    ("changes", "seeds", "learning", "remedy"),
    [
        (
            {},
            1_000_000,
            False,
            r"\(1,000,000 seeds, 200 rounds, 10 clients, 4 channels\), but 8.0 GB is available: at most",
        ),
        ({"rounds": 2**31 - 1}, 1, False, "reduce rounds"),
        ({"network.clients": 10**6, "network.channels": 10**5}, 1, False, "reduce network.clients or network.channels"),
        ({"learning.model": "cnn", "learning.batch_size": 10**6}, 1, True, "reduce learning.batch_size"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_in_one_line(changes, seeds, learning, remedy):
    with pytest.raises(InputError, match=remedy) as error:
        check(QUICKSTART.with_values(changes), make_policy("lane"), seeds, learning=learning)
    assert "\n" not in str(error.value)


def test_the_number_of_seeds_in_the_message_fits():
    each = run_footprint(QUICKSTART, make_policy("lane"), 1, learning=False)
    most = each.largest_seeds(8e9)
    check(QUICKSTART, make_policy("lane"), most, learning=False)
    with pytest.raises(InputError, match=f"at most about {most:,} seeds fit"):
        check(QUICKSTART, make_policy("lane"), most + 1, learning=False)


def test_a_simulation_refuses_before_it_allocates(monkeypatch):
    monkeypatch.setattr(footprint, "available_bytes", lambda: 1e9)
    with pytest.raises(InputError, match=r"but 1\.0 GB is available"):
        Simulation(QUICKSTART, "lane", range(10**9))


def test_limits_of_control_groups(tmp_path):
    """Version 2: the limit is set above the process's own group; cached files count as available."""
    groups = tmp_path / "cgroup"
    groups.write_text("0::/outer/inner\n")
    inner = tmp_path / "fs" / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, "5000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("3000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 400\n")
    assert _container_bytes(tmp_path / "fs", groups) == 2400
    assert _container_bytes(tmp_path / "fs", tmp_path / "missing") is None


def test_limits_of_control_groups_of_version_1(tmp_path):
    groups, folder = tmp_path / "cgroup", tmp_path / "fs" / "memory" / "box"
    groups.write_text("5:cpu:/\n4:memory:/box\n")
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("7000")
    (folder / "memory.usage_in_bytes").write_text("1000")
    (folder / "memory.stat").write_text("total_inactive_file 500\n")
    assert _container_bytes(tmp_path / "fs", groups) == 6500


MEASURE = """
import tempfile
from pathlib import Path
from fedlane.scenario import Scenario
from fedlane.simulation.footprint import run_footprint
from fedlane.simulation.results import RunFolder
from fedlane.simulation.simulation import Simulation

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

def played(rounds, seeds):
    terms = {"rounds": rounds, "privacy.mechanism": "none"}  # whose accounting is not part of the estimate
    simulation = Simulation(Scenario.load("paper-fmnist").with_values(terms), "random", range(seeds))
    simulation.play()
    with tempfile.TemporaryDirectory() as folder:
        RunFolder.create(folder + "/run").write(simulation.result(), checkpoint=simulation.checkpoint())
    return simulation

played(3, 1)
before = peak()
simulation = played(500, 100)
print((peak() - before) / run_footprint(simulation.scenario, simulation.policy, 100, learning=False).total)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_the_estimate_is_near_the_measured_memory():
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert 0.4 < float(result.stdout) < 1.6


def test_only_large_runs_are_tried_first():
    assert not trial.is_large(QUICKSTART, 20, learning=True)
    assert trial.is_large(QUICKSTART, 1000, learning=False)


@pytest.mark.slow
def test_the_time_is_extrapolated_from_few_seeds():
    scenario = QUICKSTART.with_values({"rounds": 20})
    estimate = partial(trial.estimated_seconds, scenario, "random", learning=False, device="cpu")
    few, many = estimate(range(16)), estimate(range(16_000))
    assert 0 < few < 60
    assert 50 < many / few < 5000
