"""Checkpoints: a run killed at any instant goes on to the results of an unbroken one."""

import json
import random
import subprocess
import sys

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
from fedlane.cli.display import Display
from fedlane.cli.session import messages, play
from fedlane.scenario import Scenario
from fedlane.simulation.results import RunFolder
from fedlane.simulation.run import Simulation
import fedlane.learning.federation, fedlane.report.figures, os, signal, time

scenario = Scenario.load("quickstart").with_values({"rounds": ROUNDS, "learning.evaluate_every": 3})

def work(folder):
    if (folder / "checkpoint.npz").exists():
        play("resuming", lambda: Simulation.resume(folder), RunFolder(folder), 2, Display(messages, quiet=True))
    else:
        import shutil; shutil.rmtree(folder, ignore_errors=True)
        make = lambda: Simulation(scenario, "lane", [0, 1], learning=True)
        play("lane", make, RunFolder.create(folder), 2, Display(messages, quiet=True))

step = Simulation.step
step(Simulation(scenario, "lane", [0, 1], learning=True))  # loads what every child needs

# Each line of input names a folder, a number of rounds and a time; a child plays there until it is done, or is killed
# that time after it has begun that round. The answer is the time of a round.
for line in sys.stdin:
    folder, rounds, seconds = line.split()
    begun, told = os.pipe()
    child = os.fork()
    if child == 0:
        def step_and_tell(simulation):
            os.write(told, b".")
            step(simulation)

        Simulation.step = step_and_tell
        try:
            work(Path(folder))
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    os.close(told)
    times = []
    while len(times) < int(rounds) and os.read(begun, 1):
        times.append(time.monotonic())
    if len(times) == int(rounds):
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun)
    print((times[-1] - times[0]) / len(times), flush=True)
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


KILLS = 10


@pytest.mark.slow
def test_kills_at_random_instants(tmp_path):
    """kill -9 anywhere, writes included: what is there is readable, and resuming gives the unbroken run's bits.

    A checkpoint is written every second round, which takes longer than the rounds, so many kills hit a write.
    """
    command = [sys.executable, "-c", DRIVER.replace("ROUNDS", str(ROUNDS))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        kill_and_resume(driver, tmp_path)


def kill_and_resume(driver, tmp_path):
    def play(folder, rounds=2 * ROUNDS, seconds=0.0):
        driver.stdin.write(f"{folder} {rounds} {seconds}\n")
        driver.stdin.flush()
        return float(driver.stdout.readline())

    round_s = play(tmp_path / "whole")
    whole = Run.load(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "status.json").read_text())["state"] == "finished"
    rng = random.Random(1)
    for instant in range(KILLS):
        folder = tmp_path / f"cut{instant}"
        play(folder, rng.randrange(4, ROUNDS), rng.uniform(0.0, round_s))
        status = json.loads((folder / "status.json").read_text())
        if status["state"] == "running":  # unless the last round was cut, and it was over before
            partial = Run.load(folder)
            assert partial.summary["rounds"] >= 2
            saved = Checkpoint.load(folder)
            assert saved.arrays["trace.delay_s"].shape[1] % 2 == 0
        play(folder)
        same(Run.load(folder), whole)
    driver.stdin.close()


@pytest.mark.parametrize("policy", ["lane", "mamab-om", "mamab-gmba", "single-ucb", "round-robin", "genie", "random"])
def test_every_policy_resumes_to_the_same_schedule(policy, tmp_path):
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": 60, "privacy.max_uploads": 20})

    def finish(simulation):
        while not simulation.finished:
            simulation.step()
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
    while not simulation.finished:
        simulation.step()
    folder.write(simulation.result())
    assert not (tmp_path / "r" / "checkpoint.npz").exists()
