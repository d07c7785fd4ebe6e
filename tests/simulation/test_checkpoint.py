"""Checkpoints: a run killed at any instant goes on to the results of an unbroken one."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation
from fedlane.simulation.checkpoint import Checkpoint
from fedlane.simulation.results import COLUMNS, RunFolder
from fedlane.validate import InputError

ROUNDS = 36

DRIVER = """
import sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from fedlane.cli.session import Session
from fedlane.scenario import Scenario
from fedlane.simulation.results import RunFolder
from fedlane.simulation.run import Simulation
import fedlane.learning.federation, fedlane.report.figures, os, signal, time

scenario = Scenario.load("quickstart").with_values({"rounds": ROUNDS, "learning.evaluate_every": 3})

session = Session(quiet=True, checkpoint_every=2)

def work(folder):
    if (folder / "checkpoint.npz").exists():
        session.play("resuming", lambda: Simulation.resume(folder), RunFolder(folder))
    else:
        import shutil; shutil.rmtree(folder, ignore_errors=True)
        make = lambda: Simulation(scenario, "lane", [0, 1], learning=True)
        session.play("lane", make, RunFolder.create(folder))

# Each line of input names a folder and a time; a child plays there until it is done or the time is up.
for line in sys.stdin:
    folder, seconds = line.split()
    child = os.fork()
    if child == 0:
        try:
            work(Path(folder))
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    else:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass
    print("done", flush=True)
"""


def same(one, two):
    for name in COLUMNS:
        assert one.tables[name].equals(two.tables[name]), name
    assert {k: v for k, v in one.summary.items() if k != "elapsed_s"} == {
        k: v for k, v in two.summary.items() if k != "elapsed_s"
    }
    assert one.model.keys() == two.model.keys()
    for name, tensor in one.model.items():
        np.testing.assert_array_equal(tensor, two.model[name])


def test_twenty_kills_at_random_instants(tmp_path):
    """kill -9 anywhere, writes included: what is there is readable, and resuming gives the unbroken run's bits."""
    command = [sys.executable, "-c", DRIVER.replace("ROUNDS", str(ROUNDS))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        cut_short = kill_and_resume(driver, tmp_path)
    assert cut_short >= 5  # the instants did hit runs that had something to lose


def kill_and_resume(driver, tmp_path):
    """How many of twenty kills hit a run that had written something."""

    def play(folder, seconds):
        driver.stdin.write(f"{folder} {seconds}\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "done\n"

    play(tmp_path / "first", 120)  # waits for the driver's imports
    start = time.monotonic()
    play(tmp_path / "whole", 120)
    lasting = time.monotonic() - start
    whole = Run.load(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "status.json").read_text())["state"] == "finished"
    rng = random.Random(1)
    cut_short = 0
    for instant in range(20):
        folder = tmp_path / f"cut{instant}"
        play(folder, rng.uniform(0.45, 1.0) * lasting)  # the first half is preparation
        if (folder / "status.json").exists():
            partial = Run.load(folder)
            status = json.loads((folder / "status.json").read_text())
            if status["state"] == "running":
                cut_short += 1
                assert partial.summary["rounds"] >= 2
                saved = Checkpoint.load(folder)
                assert saved.arrays["trace.delay_s"].shape[1] % 2 == 0
        play(folder, 120)
        same(Run.load(folder), whole)
    driver.stdin.close()
    return cut_short


@pytest.mark.parametrize("policy", ["lane", "mamab-om", "mamab-gmba", "single-ucb", "round-robin", "genie", "random"])
def test_every_policy_resumes_to_the_same_schedule(policy, tmp_path):
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": 60, "privacy.max_uploads": 20})

    def finish(simulation):
        simulation.play()
        return simulation.result()

    whole = finish(Simulation(scenario, policy, [3, 5]))
    broken = Simulation(scenario, policy, [3, 5])
    for _ in range(33):
        broken.step()
    RunFolder.create(tmp_path / "r").write(broken.result(), checkpoint=broken.checkpoint())
    same(finish(Simulation.resume(tmp_path / "r")), whole)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    simulation = Simulation(Scenario.load("paper-fmnist").with_values({"rounds": 9}), "lane", [0])
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
    simulation = Simulation(Scenario.load("paper-fmnist").with_values({"rounds": 4}), "lane", [0])
    simulation.step()
    folder = RunFolder.create(tmp_path / "r")
    folder.write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    assert json.loads((tmp_path / "r" / "status.json").read_text())["state"] == "interrupted"
    simulation.play()
    folder.write(simulation.result())
    assert not (tmp_path / "r" / "checkpoint.npz").exists()
