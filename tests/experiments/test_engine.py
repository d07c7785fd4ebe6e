"""The engine: keys hold everything that changes a result, results are the same everywhere and computed once."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedlane import Scenario, simulate, sweep
from fedlane.experiments.engine import cells as cells_module
from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.computing import compute
from fedlane.experiments.engine.local_runners import ATTEMPTS, InProcessRunner, ProcessRunner
from fedlane.experiments.engine.measuring import MEASURES
from fedlane.experiments.engine.user_code import class_digests
from fedlane.experiments.engine.work_batches import WorkBatch, attempt, perform
from fedlane.report.seed_measures import seed_measures
from fedlane.scheduling.baselines import Random
from fedlane.validate import InputError
from support.counted_policy import COUNTED
from support.forked import Forked
from support.waiting import wait_for

QUICK = Scenario.load("quickstart").with_values({"rounds": 6})


def cell(policy="lane", seeds=(0, 1), learning=False, device="cpu", **changes):
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return Cell(QUICK.with_values(values), policy, tuple(seeds), learning, device)


def keys(subject):
    return [batch.key for batch in subject.batches()]


class TestKeys:
    @pytest.mark.parametrize(
        "changed",
        [
            cell(rounds=7),
            cell(network__clients=11),
            cell(network__deadline_s=2.5),
            cell(learning__learning_rate=0.02),
            cell(privacy__epsilon=3.0),
            cell("random"),
            cell("lane:V=6"),
            cell(policies__lane__V=6.0),
            cell(seeds=(0, 2)),
            cell(seeds=(1, 0)),
            cell(seeds=(0,)),
            cell(learning=True),
        ],
    )
    def test_a_key_changes_with_everything_that_changes_the_result(self, changed):
        assert keys(changed) != keys(cell())

    @pytest.mark.parametrize(
        "same",
        [
            cell("lane:V=7"),
            cell(name="another name"),
            cell(policies__lane__V=7.0),
            cell(policies={"mamab-om": {"V": 3.0}}),
            cell(device="cuda"),  # nothing is learned
            cell(network__deadline_s=QUICK.network.deadline_s),
        ],
    )
    def test_a_key_does_not_change_with_names_and_what_has_no_effect(self, same):
        assert keys(same) == keys(cell())

    def test_the_device_matters_where_something_is_learned(self):
        assert keys(cell(learning=True)) != keys(cell(learning=True, device="cuda"))

    def test_versions_of_the_policy_and_of_the_code_change_the_key(self, monkeypatch):
        before = keys(cell("random"))
        monkeypatch.setattr(Random, "version", 2)
        newer = keys(cell("random"))
        monkeypatch.setattr(cells_module, "RESULT_VERSION", 99)
        assert len({*before, *newer, *keys(cell("random"))}) == 3

    def test_the_version_of_a_policy_for_one_replica_changes_the_key(self, tmp_path, monkeypatch):
        shutil.copy(Path(__file__).parents[2] / "examples" / "patient_policy.py", tmp_path / "my_patient_policy.py")
        monkeypatch.chdir(tmp_path)
        before = keys(cell("my_patient_policy:Patient"))
        monkeypatch.setattr(sys.modules["my_patient_policy"].Patient, "version", 2)
        assert keys(cell("my_patient_policy:Patient")) != before

    def test_the_source_of_a_user_s_policy_and_of_what_it_imports_changes_the_key(self, tmp_path):
        (tmp_path / "my_policy.py").write_text(
            "from my_base import Base\n\nclass Mine(Base):\n    name = 'mine'\n", encoding="utf-8"
        )
        texts = {
            "my_base": "from fedlane.scheduling.baselines import Random\n\nclass Base(Random):\n    offset = {}\n",
            "my_model": "from my_layers import net\n# {}\n",
            "my_layers": "WIDTH = {}\n\ndef net():\n    return WIDTH\n",
        }

        def print_key():
            sys.dont_write_bytecode = True
            sys.path.insert(0, "")
            scenario = QUICK.with_values({"learning.model": "my_model:net"})
            print(Cell(scenario, "my_policy:Mine", (0, 1), True).batches()[0].key)

        def printed(**versions):
            """The key, printed by a process that has not imported the files."""
            for name, text in texts.items():
                (tmp_path / f"{name}.py").write_text(text.format(versions.get(name, 0)), encoding="utf-8")
            with Forked(print_key, cwd=tmp_path) as child:
                result = child.wait()
            assert result.returncode == 0, result.stderr
            return result.stdout

        assert printed() == printed()
        assert len({printed(), *(printed(**{name: 1}) for name in texts)}) == 4

    def test_a_file_that_changed_after_it_was_loaded_is_refused(self, tmp_path, monkeypatch):
        """The key would name code that does not run."""
        file = tmp_path / "my_edited_policy.py"
        text = "from fedlane.scheduling.baselines import Random\nclass Mine(Random):\n    name = 'mine'\n"
        file.write_text(text)
        monkeypatch.chdir(tmp_path)
        (before,) = cell("my_edited_policy:Mine").batches()
        file.write_text(text + "# changed\n")
        with pytest.raises(
            InputError, match=r"my_edited_policy\.py has changed since it was loaded: start Python again"
        ):
            cell("my_edited_policy:Mine").batches()
        line = attempt(before).error  # a worker that finds other code than the batch was planned with
        assert (
            line == "my_edited_policy is not the code that this batch was planned with: my_edited_policy.py has changed"
        )

    def test_registered_policies_differ_by_their_code(self):
        """Two classes of one name, as a notebook defines them one after the other."""
        classes = []
        for choice in ("0", "1"):
            names = {"__name__": "typed_in", "Random": Random}
            exec(f"class Dice(Random):\n    def chosen(self):\n        return {choice}\n", names)
            classes.append(names["Dice"])
        first, second = (class_digests(policy_class) for policy_class in classes)
        assert first.keys() == second.keys() == {"typed_in.Dice"}
        assert first != second
        assert class_digests(Random) == {}

    @pytest.mark.slow
    def test_keys_do_not_depend_on_the_process(self):
        code = (
            "from fedlane import Scenario\nfrom fedlane.experiments.engine.cells import Cell\n"
            "s = Scenario.load('quickstart').with_values({'rounds': 6})\n"
            "print(Cell(s, 'lane', (0, 1), False).batches()[0].key)"
        )
        environment = {**os.environ, "PYTHONHASHSEED": "7"}
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert printed.stdout.split() == keys(cell()), printed.stderr


class TestBatches:
    def test_batches_follow_from_the_list_of_seeds(self):
        batches = cell(seeds=range(150)).batches()
        assert [len(batch.values["seeds"]) for batch in batches] == [64, 64, 22]
        assert [seed for batch in batches for seed in batch.values["seeds"]] == list(range(150))
        assert [len(batch.values["seeds"]) for batch in cell(seeds=range(20), learning=True).batches()] == [8, 8, 4]

    def test_a_large_network_gets_few_seeds_per_batch(self):
        large = cell(seeds=range(64), network__clients=1000, network__channels=1000)
        assert large.batch_seeds() == 3

    def test_only_learning_on_a_gpu_needs_a_gpu(self):
        flags = [c.batches()[0].needs_gpu for c in (cell(), cell(device="cuda"), cell(learning=True, device="cuda"))]
        assert flags == [False, False, True]

    def test_the_measures_are_those_of_a_run(self):
        subject = cell(seeds=(3, 1, 2))
        store = BatchStore()
        compute(subject.batches(), store, InProcessRunner())
        table = store.read(keys(subject)[0])
        run = simulate(QUICK, "lane", seeds=[3, 1, 2], learning=False)
        expected = seed_measures(run.tables)
        assert table["seed"].to_pylist() == [3, 1, 2]
        for name in MEASURES[:-1]:
            assert table[name].to_pylist() == pytest.approx(expected[name].tolist(), abs=1e-12), name
        assert table["final_accuracy"].null_count == 3

    def test_a_function_of_another_package_is_not_called(self):
        with pytest.raises(ValueError, match="not a function of FedLane"):
            perform(WorkBatch("k", "os:getcwd", {}))
        assert attempt(WorkBatch("k", "os:getcwd", {})).error.startswith("ValueError: os:getcwd")


class TestComputing:
    def test_a_stored_batch_is_not_computed_again(self, tmp_path, counted):
        subjects = [cell(f"{COUNTED}:tag={tag}") for tag in (1, 2, 1)]
        batches = [batch for subject in subjects for batch in subject.batches()]
        store = BatchStore(tmp_path / "cells")
        first = compute(batches[:1], store, InProcessRunner())
        second = compute(batches, store, InProcessRunner())
        third = compute(batches, BatchStore(tmp_path / "cells"), InProcessRunner())
        assert [(r.computed, r.reused) for r in (first, second, third)] == [(1, 0), (1, 1), (0, 2)]
        assert counted() == ["1", "2"]
        assert not list((tmp_path / "cells").glob(".*"))

    def test_a_failure_does_not_stop_the_others(self):
        broken = dataclasses.replace(cell().batches()[0], key="broken", values={"scenario": {"rounds": 0}})
        unknown = cell().batches()[0]
        unknown = WorkBatch("gone", unknown.function, {**unknown.values, "policy": "nosuch"})
        good = cell("random").batches()
        store = BatchStore()
        report = compute([broken, unknown, *good], store, InProcessRunner())
        assert store.keys() == {good[0].key}
        assert report.failures["broken"] == "rounds must be at least 1, got 0"
        assert report.failures["gone"].startswith("unknown policy 'nosuch'")

    def test_a_damaged_result_is_named(self, tmp_path):
        store = BatchStore(tmp_path)
        (tmp_path / "abc.parquet").write_bytes(b"nonsense")
        with pytest.raises(InputError, match=r"abc\.parquet is damaged.*remove it to compute it again"):
            store.read("abc")


@pytest.mark.slow
def test_schedules_and_learning_have_the_same_bits_in_processes(tmp_path):
    subjects = [
        cell("lane", seeds=range(3)),
        cell("random", seeds=range(3), network__channels=3),
        cell("lane", seeds=range(10), learning=True),
    ]
    batches = [batch for subject in subjects for batch in subject.batches()]
    stores = [BatchStore(tmp_path / name) for name in ("here", "processes")]
    compute(batches, stores[0], InProcessRunner())
    report = compute(list(reversed(batches)), stores[1], ProcessRunner(2))
    assert (report.computed, report.failures) == (4, {})
    for batch in batches:
        files = [(store.folder / f"{batch.key}.parquet").read_bytes() for store in stores]
        assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: a process with threads
class TestKilled:
    def test_a_killed_worker_is_replaced_and_nothing_stored_is_computed_twice(
        self, forked_workers, counted, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("KILL_ONCE", str(tmp_path / "killed"))
        subjects = [cell(f"{COUNTED}:tag={tag},kill={'true' if tag == 3 else 'false'}") for tag in range(8)]
        batches = [batch for subject in subjects for batch in subject.batches()]
        stored_before_death = []
        store = BatchStore(tmp_path / "cells")
        runner = ProcessRunner(2)

        def note(finished):
            if not runner.retried:
                stored_before_death.append(finished.key)

        report = compute(batches, store, runner, note)
        assert (report.computed, report.failures, store.keys()) == (8, {}, {batch.key for batch in batches})
        assert (tmp_path / "killed").exists()
        assert report.retried >= 1
        starts = counted()
        for tag, batch in enumerate(batches):
            if batch.key in stored_before_death:
                assert starts.count(str(tag)) == 1
        assert len(starts) <= 8 + report.retried

    def test_a_batch_that_always_kills_its_worker_fails_alone(self, forked_workers, monkeypatch):
        monkeypatch.setenv("KILL_ALWAYS", "1")
        subjects = [cell(f"{COUNTED}:tag={tag},kill={'true' if tag == 1 else 'false'}") for tag in range(4)]
        batches = [batch for subject in subjects for batch in subject.batches()]
        report = compute(batches, BatchStore(), ProcessRunner(2))
        assert report.computed == 3
        assert report.failures == {batches[1].key: f"its worker process died {ATTEMPTS} times (out of memory?)"}

    @pytest.mark.parametrize("workers", ["forked_workers", pytest.param("started_workers", marks=pytest.mark.long)])
    def test_a_killed_driver_takes_its_workers_with_it_and_continues(self, workers, counted, request, tmp_path):
        if workers == "forked_workers":
            request.getfixturevalue(workers)
        out = tmp_path / "sweep"
        with Forked(lambda: play_cells(out, kill_after=3), cwd=tmp_path) as driver:
            assert driver.wait().returncode == -signal.SIGKILL, driver.result.stderr
            wait_for(lambda: not processes_of(driver.pid))  # workers end with their driver
        stored = {path.stem for path in (out / "cells").glob("*.parquet")}
        started = counted()
        assert len(stored) == 3
        with Forked(lambda: play_cells(out), cwd=tmp_path) as driver:
            assert driver.wait().returncode == 0, driver.result.stderr
        again = counted()[len(started) :]
        assert len({*again}) == len(again) == CELLS - len(stored)


CELLS = 10


def play_cells(out, kill_after=None):
    """Play a sweep with two workers; if told to, kill this process after so many results were stored."""
    write = BatchStore.write

    def write_and_die(store, key, content):
        write(store, key, content)
        if len(store.keys()) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    BatchStore.write = write_and_die
    grid = {"policies.counted.tag": list(range(CELLS)), "rounds": [100]}
    sweep("quickstart", COUNTED, grid, seeds=2, learning=False, workers=2, out=out)


def processes_of(session):
    return subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True).stdout.split()
