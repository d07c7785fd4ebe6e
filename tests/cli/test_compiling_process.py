"""The second process that compiles kernels: when it starts, what a command waits for, and that it always ends."""

import os
import signal
import sys
from pathlib import Path

import numba
import pytest
from numba.core import caching

from fedlane import Scenario, compiled, make_policy
from fedlane.cli import compiling, compiling_process
from fedlane.cli.compiling_process import CompilingProcess
from fedlane.cli.run_plan import RunPlan
from fedlane.learning import cpu_kernels
from fedlane.matching import bottleneck, small
from fedlane.scheduling.lane import delay_rows, looking, search
from fedlane.validate import InputError
from support.forked import Forked
from support.terminal import fedlane
from support.waiting import wait_for

SLEEP = "import time; time.sleep(60)"
OF_LANE = [
    "fedlane.matching.small:max_sum_small",
    "fedlane.scheduling.lane.delay_rows:fill_rows",
    "fedlane.scheduling.lane.looking:fill_values",
    "fedlane.scheduling.lane.search:improve_starts",
]
OF_CLAIRVOYANT = "fedlane.scheduling.rivals.best_round:search_levels"
NOTICE = "Compiling kernels (first run only)"


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(compiling_process, "second_core", lambda: True)


@pytest.fixture
def empty_cache(monkeypatch):
    monkeypatch.setattr(compiling, "is_cached", lambda kernel: False)


@pytest.fixture
def started(monkeypatch, two_cores):
    """The processes that commands start, with their kernels; they only sleep."""
    monkeypatch.setattr(compiling_process, "_CODE", SLEEP)
    start, processes = compiling_process._started, []

    def recorded(names):
        processes.append((start(names), list(names)))
        return processes[-1][0]

    monkeypatch.setattr(compiling_process, "_started", recorded)
    return processes


def test_leaving_the_context_ends_the_process(started):
    with CompilingProcess() as process:
        assert process.start(["a:b"])
        assert started[0][0].poll() is None
    assert started[0][0].returncode == -signal.SIGKILL
    assert started[0][0].stdin.closed
    assert started[0][0].stdout.closed


def test_there_is_one_process_at_most(started):
    with CompilingProcess() as process:
        assert process.start(["a:b", "a:c"])
        assert process.start(["a:c"])
        assert not process.start(["a:d"])
    assert [names for _, names in started] == [["a:b", "a:c"]]


def test_one_core_or_no_kernels_start_no_process(started, monkeypatch):
    with CompilingProcess() as process:
        assert not process.start([])
        monkeypatch.setattr(compiling_process, "second_core", lambda: False)
        assert not process.start(["a:b"])
        process.wait_for(["a:b"])
    assert not started
    assert not process.kernels


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs the cores of a process")
def test_only_the_cores_of_this_process_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert not compiling_process.second_core()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3})
    assert compiling_process.second_core()


def test_a_run_waits_only_for_its_own_kernels(monkeypatch, two_cores):
    monkeypatch.setattr(compiling_process, "_CODE", f"import sys; print(sys.argv[1], flush=True); {SLEEP}")
    with CompilingProcess() as process:
        process.start(["a:b", "a:c"])
        process.wait_for(["a:b", "other:kernel"])
        process.wait_for(["a:b"])


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_nothing_waits_for_a_process_that_failed(monkeypatch, two_cores, code):
    monkeypatch.setattr(compiling_process, "_CODE", code)
    with CompilingProcess() as process:
        process.start(["a:b"])
        process.wait_for(["a:b"])


def test_a_process_that_cannot_be_started_is_not_needed(monkeypatch, two_cores):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with CompilingProcess() as process:
        assert not process.start(["a:b"])
        process.wait_for(["a:b"])


def test_the_process_ends_when_its_parent_is_killed(two_cores, tmp_path):
    """It would compile for several seconds with this empty cache folder."""

    def start_and_die():
        process = CompilingProcess()
        process.start(["fedlane.matching.bottleneck:solve_batch"])
        print(process._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with Forked(start_and_die, cwd=tmp_path, environment={"NUMBA_CACHE_DIR": str(tmp_path)}) as parent:
        killed = parent.wait()
        assert killed.returncode == -signal.SIGKILL
        wait_for(lambda: not _runs(int(killed.stdout)), every_s=0.02)
    assert not [*tmp_path.rglob("*.nbc")]


def _runs(pid):
    """Whether the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_the_process_stores_the_kernels_and_names_them(two_cores, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    name = "fedlane.matching.bottleneck:greedy_batch"
    with CompilingProcess() as process:
        process.start([name])
        process.wait_for([name])
        assert process._done == {name}
    assert [*tmp_path.rglob("*greedy_batch*.nbc")]


def test_compiling_starts_before_anything_is_prepared(started, empty_cache, tmp_path, monkeypatch):
    def refuse(plan, policies, *, quiet):
        assert [names for _, names in started] == [OF_LANE]
        assert started[0][0].poll() is None
        raise InputError("too large")

    monkeypatch.setattr(RunPlan, "check_size", refuse)
    result = fedlane("run", "quickstart", cwd=tmp_path, code=2)
    assert result.stderr.splitlines() == [NOTICE, "fedlane: too large"]
    assert started[0][0].returncode == -signal.SIGKILL  # no process outlives a command that fails


def test_ctrl_c_leaves_no_process(started, empty_cache, tmp_path, monkeypatch):
    def interrupt(plan, policy):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunPlan, "simulation", interrupt)
    assert fedlane("run", "quickstart", "--no-learning", cwd=tmp_path, code=130).stdout == ""
    assert started[0][0].returncode == -signal.SIGKILL


def test_a_comparison_compiles_the_kernels_of_its_policies_in_their_order(started, empty_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(RunPlan, "check_size", lambda *_, **__: pytest.fail("stop here"))
    policies = ("--policy", "mamab-gmba", "--policy", "lane", "--policy", "clairvoyant")
    with pytest.raises(pytest.fail.Exception):
        fedlane("compare", "quickstart", *policies, "--json", cwd=tmp_path)
    assert [names for _, names in started] == [["fedlane.matching.bottleneck:greedy_batch", *OF_LANE, OF_CLAIRVOYANT]]
    assert started[0][0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("run", "--help"),
        ("list", "policies"),
        ("show", "quickstart"),
        ("run", "quickstart", "--policy", "no-such-policy"),
        ("run", "quickstart", "--set", "rounds=-1"),
    ],
)
def test_commands_that_compile_nothing_start_nothing(started, empty_cache, tmp_path, words):
    fedlane(*words, cwd=tmp_path)
    assert not started


@pytest.mark.parametrize(("policy", "cached"), [("random", False), ("lane", True)])
def test_a_run_without_kernels_to_compile_starts_nothing(started, monkeypatch, tmp_path, policy, cached):
    def refuse(plan, policies, *, quiet):
        raise InputError("too large")

    monkeypatch.setattr(RunPlan, "check_size", refuse)
    monkeypatch.setattr(compiling, "is_cached", lambda kernel: cached)
    assert fedlane("run", "--policy", policy, cwd=tmp_path, code=2).stderr == "fedlane: too large\n"
    assert not started


@pytest.mark.parametrize(("options", "lines"), [((), 1), (("--quiet",), 0), (("--json",), 0)])
def test_the_notice_is_printed_once(monkeypatch, two_cores, empty_cache, tmp_path, options, lines):
    monkeypatch.setattr(compiling_process, "_CODE", "import sys; print(*sys.argv[1:], sep=chr(10))")
    words = ("run", "--policy", "mamab-gmba", "--rounds", "2", "--no-learning", "--out", "run", *options)
    assert fedlane(*words, cwd=tmp_path, code=0).stderr.count("ompil") == lines


def test_kernels_of_training_are_compiled_here_while_the_process_compiles_the_others(
    monkeypatch, two_cores, empty_cache
):
    monkeypatch.setattr(compiling_process, "_CODE", "import sys; print(*sys.argv[1:], sep=chr(10))")
    here, shown = [], []
    monkeypatch.setattr(compiled, "compile_usual", here.append)
    of_lane = {small.max_sum_small, delay_rows.fill_rows, looking.fill_values, search.improve_starts}
    kernels = {cpu_kernels.gather_images, cpu_kernels.mlp_tail, *of_lane}
    with CompilingProcess() as process:
        policy, scenario = make_policy("lane"), Scenario.load("quickstart")
        assert compiling.start_early(process, [policy], scenario)
        compiling.Compilation(lambda *numbers: shown.append(numbers), process).compile_ahead(kernels)
        assert process._done == set(OF_LANE)
    assert here == [cpu_kernels.mlp_tail, cpu_kernels.gather_images]
    assert shown == [(5, 6), (6, 6)]  # the user has been told about the first four


@pytest.mark.parametrize(("cores", "compiled_here"), [(1, 2), (2, 1)])
def test_a_resumed_run_shares_the_work_when_it_is_prepared(monkeypatch, empty_cache, cores, compiled_here):
    """Its policy is not known earlier."""
    monkeypatch.setattr(compiling_process, "second_core", lambda: cores > 1)
    monkeypatch.setattr(compiling_process, "_CODE", "import sys; print(*sys.argv[1:], sep=chr(10))")
    here, shown = [], []
    monkeypatch.setattr(compiled, "compile_usual", here.append)
    with CompilingProcess() as process:
        compilation = compiling.Compilation(lambda *numbers: shown.append(numbers), process)
        compilation.compile_ahead([cpu_kernels.gather_images, bottleneck.greedy_batch])
    assert (len(here), shown) == (compiled_here, [(1, 2), (2, 2)])


def test_without_a_folder_for_machine_code_each_process_compiles(monkeypatch, two_cores, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    successor = compiled.kernel("(int64,)")(_successor)
    assert successor(1) == 2
    assert not compiling.has_file(successor)
    assert not compiling.is_cached(successor)
    monkeypatch.setattr(compiling, "policy_kernels", lambda policy, scenario: {successor})
    with CompilingProcess() as process:
        assert not compiling.start_early(process, [make_policy("lane")], Scenario.load("quickstart"))
        compiling.Compilation(lambda *_: None, process).compile_ahead([successor, cpu_kernels.gather_images])
        assert not process.kernels


def _successor(number):
    return number + 1
