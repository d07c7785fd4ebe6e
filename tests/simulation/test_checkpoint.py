"""Checkpoints: a run that is killed at any instant is resumed to the results of an uninterrupted run."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation
from fedlane.cli.session import Session
from fedlane.simulation.checkpoint import Checkpoint
from fedlane.simulation.results import COLUMNS, RunFolder
from fedlane.validate import InputError
from support.small_runs import PAPER, UNSAMPLED
from support.terminal import fedlane

ROUNDS = 36

SCENARIO = Scenario.load("quickstart").with_values({"rounds": ROUNDS, "learning.evaluate_every": 3})


def play(folder):
    """Begin or resume a run of two seeds that learns; a checkpoint is written after every second round."""
    session = Session(quiet=True, checkpoint_every=2)
    if (folder / "checkpoint.npz").exists():
        session.play("resuming", lambda: Simulation.resume(folder), RunFolder(folder))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        session.play("lane", lambda: Simulation(SCENARIO, "lane", [0, 1], learning=True), RunFolder.create(folder))


def play_and_kill(folder, rounds, seconds):
    """Play in a child process that is killed some seconds after the start of its n-th round, if it has not ended."""
    reader, writer = os.pipe()
    child, step = os.fork(), Simulation.step
    if child == 0:

        def step_and_report(simulation):
            os.write(writer, b".")
            step(simulation)

        Simulation.step = step_and_report
        try:
            play(folder)
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(writer)
    begun = 0
    while begun < rounds and os.read(reader, 1):
        begun += 1
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    assert status == 0 or os.WIFSIGNALED(status), "the run failed before it was killed"


def assert_same(run, expected):
    for name in COLUMNS:
        assert run.tables[name].equals(expected.tables[name]), name
    assert {**run.summary, "elapsed_s": None} == {**expected.summary, "elapsed_s": None}
    assert run.model.keys() == expected.model.keys()
    for name, tensor in run.model.items():
        np.testing.assert_array_equal(tensor, expected.model[name])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_random_instants(tmp_path, kills):
    """After SIGKILL, even during a write, the folder is readable and resuming gives bit-identical results.

    A checkpoint is written every second round, which takes longer than the rounds, so many kills hit a write.
    """
    start = time.monotonic()
    play(tmp_path / "whole")
    round_s = (time.monotonic() - start) / ROUNDS
    whole = Run.load(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "status.json").read_text())["state"] == "finished"
    rng = random.Random(1)
    for number in range(kills):
        folder = tmp_path / f"cut{number}"
        play_and_kill(folder, rng.randrange(4, ROUNDS), rng.uniform(0.0, round_s))
        status = json.loads((folder / "status.json").read_text())
        if status["state"] == "running":  # the kill may also come after the last write
            partial = Run.load(folder)
            assert partial.summary["rounds"] >= 2
            saved = Checkpoint.load(folder)
            assert saved.arrays["trace.delay_s"].shape[1] % 2 == 0
        play(folder)
        assert_same(Run.load(folder), whole)


OTHERS = [
    *("mamab-gmba", "single-ucb:beta=0.3", "ucb-index", "round-robin", "proportional-fair", "age-of-update", "fedcs"),
    *("rbcs-f", "thompson", "mamab-sw:window=9,T0=1", "mamab-discounted:T0=1", "glr-cucb:delta=0.5", "clairvoyant"),
]


@pytest.mark.parametrize(
    "policy",
    [
        *("lane", "mamab-om", "genie", "random"),
        *(pytest.param(policy, marks=pytest.mark.slow) for policy in OTHERS),
    ],
)
def test_every_policy_resumes_to_the_same_schedule(policy, tmp_path):
    scenario = UNSAMPLED.with_values({"rounds": 60, "privacy.max_uploads": 20})

    def finish(simulation):
        simulation.play()
        return simulation.result()

    whole = finish(Simulation(scenario, policy, [3, 5]))
    broken = Simulation(scenario, policy, [3, 5])
    for _ in range(33):
        broken.step()
    RunFolder.create(tmp_path / "r").write(broken.result(), checkpoint=broken.checkpoint())
    assert_same(finish(Simulation.resume(tmp_path / "r")), whole)


def test_checkpoints_without_punctual_are_resumed(tmp_path):
    """Earlier versions did not store `punctual`; it follows from the delays and the deadline."""
    simulation = Simulation(PAPER.with_values({"rounds": 30}), "lane", [3, 5])
    for _ in range(20):
        simulation.step()
    saved = simulation.checkpoint()
    arrays = {name: array for name, array in saved.arrays.items() if name != "trace.punctual"}
    RunFolder.create(tmp_path / "r").write(simulation.result(), checkpoint=replace(saved, arrays=arrays))
    resumed = Simulation.resume(tmp_path / "r")
    np.testing.assert_array_equal(resumed.trace.punctual, simulation.trace.punctual)
    assert not resumed.trace.played().punctual.all()
    simulation.play()
    resumed.play()
    assert_same(resumed.result(), simulation.result())


def test_a_checkpoint_of_another_version_of_the_policy_is_refused_in_one_line(tmp_path, monkeypatch):
    simulation = Simulation(PAPER.with_values({"rounds": 9}), "random", [0])
    simulation.step()
    RunFolder.create(tmp_path / "r").write(simulation.result(), checkpoint=simulation.checkpoint())
    assert Checkpoint.load(tmp_path / "r").version == 1
    monkeypatch.setattr(type(simulation.policy), "version", 2)
    result = fedlane("run", "--resume", "r", cwd=tmp_path, code=2)
    (line,) = result.stderr.splitlines()
    assert "r cannot be resumed: it was played with version 1 of policy random, and this is version 2" in line
    monkeypatch.undo()
    fedlane("run", "--resume", "r", "--quiet", cwd=tmp_path, code=0)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    simulation = Simulation(PAPER.with_values({"rounds": 9}), "lane", [0])
    simulation.step()
    RunFolder.create(tmp_path / "r").write(simulation.result(), checkpoint=simulation.checkpoint())
    path = tmp_path / "r" / "checkpoint.npz"
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], b"junk", b""):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=r"checkpoint\.npz is damaged"):
            Simulation.resume(tmp_path / "r")
    path.write_bytes(good)
    text = (tmp_path / "r" / "scenario.toml").read_text()
    (tmp_path / "r" / "scenario.toml").write_text(text.replace("clients = 10", "clients = 11"))
    with pytest.raises(InputError, match="does not fit its scenario"):
        Simulation.resume(tmp_path / "r")


def test_a_finished_run_keeps_no_checkpoint(tmp_path):
    """An interrupted run keeps its checkpoint, a finished one removes it."""
    simulation = Simulation(PAPER.with_values({"rounds": 4}), "lane", [0])
    simulation.step()
    folder = RunFolder.create(tmp_path / "r")
    folder.write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    assert json.loads((tmp_path / "r" / "status.json").read_text())["state"] == "interrupted"
    simulation.play()
    folder.write(simulation.result())
    assert not (tmp_path / "r" / "checkpoint.npz").exists()


def test_a_write_that_is_cut_off_leaves_a_folder_that_can_be_resumed_or_nothing(tmp_path, monkeypatch):
    """The process dies before any rename of the first write: with a checkpoint there is always its scenario."""
    simulation = Simulation(UNSAMPLED.with_values({"rounds": 6}), "lane", [0], learning=False)
    simulation.step()
    run, checkpoint, rename = simulation.result(), simulation.checkpoint(), Path.replace

    def killed_at(k):
        done = []

        def replace(path, target):
            if len(done) == k:
                raise KeyboardInterrupt
            done.append(target)
            return rename(path, target)

        return replace

    resumed = 0
    for k in range(12):
        folder = RunFolder.create(tmp_path / f"r{k}")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed_at(k))
            with contextlib.suppress(KeyboardInterrupt):
                folder.write(run, checkpoint=checkpoint)
        if (folder.path / "checkpoint.npz").exists():
            assert Simulation.resume(folder.path).round == 1
            resumed += 1
    assert resumed >= 9


def test_a_full_disk_is_one_line_whichever_file_it_cuts_off(tmp_path):
    simulation = Simulation(UNSAMPLED.with_values({"rounds": 6}), "lane", [0], learning=True)
    simulation.step()
    run, checkpoint = simulation.result(), simulation.checkpoint()
    sizes = (1, 100, 2000, 5000, 8000, 20_000, 30_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes:
        folder = RunFolder.create(tmp_path / f"r{size}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(InputError, match=r"cannot be written: [^\n]+$"):
                folder.write(run, checkpoint=checkpoint)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_run_that_has_tried_many_pairs_is_resumed(tmp_path):
    """The histories of `lane` grow beyond their first 64 rows (with few rounds left, it looks at fewer pairs)."""
    changes = {"rounds": 60, "network.clients": 30, "privacy.mechanism": "none"}
    scenario = Scenario.load("quickstart").with_values(changes)
    simulation, whole = (Simulation(scenario, "lane", [0]) for _ in range(2))
    for _ in range(25):
        simulation.step()
    assert simulation.checkpoint().arrays["state.history"].shape[1] > 64
    RunFolder.create(tmp_path / "r").write(simulation.result(), checkpoint=simulation.checkpoint())
    resumed = Simulation.resume(tmp_path / "r")
    resumed.play()
    whole.play()
    assert_same(resumed.result(), whole.result())
