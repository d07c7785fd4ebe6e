"""Runs whose policy requires losses: lockstep with learning, refused elsewhere, resumed and replicated to the bit."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation, check_policy, policies, simulate, sweep
from fedlane.scenario.run_settings import RunSettings
from fedlane.simulation.checkpoint import NAME as CHECKPOINT
from fedlane.simulation.checkpoint import Checkpoint
from fedlane.simulation.replaying import prepare_replay
from fedlane.simulation.results import RunFolder
from fedlane.simulation.run_audit import run_targets
from fedlane.validate import InputError
from support.loss_policy import LargestLoss
from support.small_runs import played
from support.terminal import fedlane

POLICY = "support.loss_policy:LargestLoss"
BUILT_IN = {
    "oort": "pacer_step=2,exploration_min=0.1,exploration_decay=0.5",
    "power-of-choice": "candidates=1.5",
    "tifl": "profiling=1,interval=2",
}
"""Built-in policies that require losses, with parameters that let every part of them work within twelve rounds."""


def scenario(mechanism="rigorous", rounds=6, **changes):
    values = {"rounds": rounds, "privacy.mechanism": mechanism, "privacy.max_uploads": 12, "learning.evaluate_every": 3}
    return Scenario.load("quickstart").with_values({**values, **changes})


def trained(mechanism="rigorous", seeds=(4,), rounds=6, policy=None):
    return played(scenario(mechanism, rounds), policy or LargestLoss(), seeds, learning=True)


@pytest.mark.slow
def test_the_contract_suite_accepts_a_policy_that_requires_losses():
    check_policy(LargestLoss())
    check_policy(LargestLoss(by_rms=True))


@pytest.mark.parametrize("mechanism", ["none", "paper", pytest.param("rigorous", marks=pytest.mark.slow)])
def test_losses_come_with_the_last_punctual_upload(mechanism):
    """The policy sees no losses at first; afterwards those of exactly the clients that were punctual before."""
    seen = []

    class Watching(LargestLoss):
        def select(self, state, context, rng):
            seen.append(context.losses)
            return super().select(state, context, rng)

    simulation = trained(mechanism, policy=Watching(), rounds=8)
    punctual = np.zeros(10, bool)
    for t, losses in enumerate(seen):
        np.testing.assert_array_equal(np.isnan(losses.mean), ~punctual)
        np.testing.assert_array_equal(np.isnan(losses.rms), ~punctual)
        assert losses.protected == (mechanism == "rigorous")
        present = simulation.trace.client[0, t][simulation.trace.punctual[0, t]]
        punctual[present] = True
    if mechanism != "rigorous":
        assert np.all(losses.rms[punctual] >= losses.mean[punctual])
        assert np.all(losses.mean[punctual] > 0)


def test_every_built_in_policy_with_losses_is_tested():
    built_in = {name: policy for name, policy in policies().items() if policy.__module__.startswith("fedlane.")}
    assert set(BUILT_IN) == {name for name, policy in built_in.items() if "losses" in policy.requires}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_policies_are_resumed_and_replicated_to_the_bit(name, tmp_path):
    policy = f"{name}:{BUILT_IN[name]}"
    among, alone = (Simulation(scenario("none", 12), policy, seeds, learning=True) for seeds in ((1, 7), (7,)))
    among.play(until=7)
    folder = RunFolder.create(tmp_path / "run")
    folder.write(among.result(), checkpoint=among.checkpoint())
    resumed = Simulation.resume(folder.path)
    for simulation in (among, alone, resumed):
        simulation.play()
    np.testing.assert_array_equal(among.trace.client, resumed.trace.client)
    np.testing.assert_array_equal(among.trace.client[1], alone.trace.client[0])
    assert (among.federation.weights == resumed.federation.weights).all()
    for key, array in among.rounds.state.items():
        np.testing.assert_array_equal(array, resumed.rounds.state[key], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["none", "rigorous"])
def test_a_replica_plays_the_same_rounds_alone_and_among_others(mechanism):
    among, alone = trained(mechanism, (1, 7, 3)), trained(mechanism, (7,))
    np.testing.assert_array_equal(among.trace.client[1], alone.trace.client[0])
    np.testing.assert_array_equal(among.federation.losses.latest.mean[1], alone.federation.losses.latest.mean[0])
    assert not np.array_equal(among.trace.client[0], among.trace.client[1])


@pytest.mark.slow
def test_a_run_is_resumed_to_the_bit(tmp_path):
    """The checkpoint holds the reports; without them it is refused in one line."""
    first = Simulation(scenario(), POLICY, [4, 5], learning=True)
    first.play(until=4)
    folder = RunFolder.create(tmp_path / "run")
    folder.write(first.result(), checkpoint=first.checkpoint())
    resumed = Simulation.resume(folder.path)
    np.testing.assert_array_equal(resumed.federation.losses.latest.mean, first.federation.losses.latest.mean)
    for simulation in (first, resumed):
        simulation.play()
    np.testing.assert_array_equal(first.trace.client, resumed.trace.client)
    np.testing.assert_array_equal(first.federation.losses.latest.rms, resumed.federation.losses.latest.rms)
    assert (first.federation.weights == resumed.federation.weights).all()
    saved = Checkpoint.load(folder.path)
    kept = {name: array for name, array in saved.arrays.items() if name != "losses.rms"}
    with (folder.path / CHECKPOINT).open("wb") as file:
        replace(saved, arrays=kept).write(file)
    with pytest.raises(InputError, match=r"its checkpoint does not fit its scenario \('losses.rms"):
        Simulation.resume(folder.path)


@pytest.mark.slow
def test_losses_cost_no_more_epsilon_and_the_summary_says_how_they_were_released():
    simulation = trained()
    mechanism, query = simulation.setup.mechanism, simulation.setup.mechanism.loss_query
    plain = Simulation(scenario(), "lane", [4]).setup.mechanism
    np.testing.assert_array_equal(mechanism.step_noise, plain.step_noise)
    np.testing.assert_allclose(1 / query.first_step_noise**2 + 1 / query.noise**2, 1 / mechanism.step_noise**2)
    privacy = simulation.result().summary["privacy"]
    assert privacy["losses"] == {
        "protected": True,
        "clip": 4.0,
        "noise_multiplier": 4.0,
        "first_step_noise": {
            "smallest": pytest.approx(query.first_step_noise.min()),
            "largest": pytest.approx(query.first_step_noise.max()),
        },
    }
    assert privacy["epsilon"]["largest"] < 8.0
    assert "losses" not in simulate(scenario(), rounds=1, learning=False).summary["privacy"]


@pytest.mark.slow
def test_exact_losses_under_the_paper_s_mechanism_are_labelled_unprotected():
    with pytest.warns(UserWarning, match="sees exact losses, which the mechanism 'paper' does not protect"):
        run = simulate(scenario("paper"), LargestLoss(), rounds=2)
    assert run.summary["privacy"]["losses"] == {"protected": False}
    assert "does not protect" in run.summary["caution"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "caution" not in simulate(scenario("none"), LargestLoss(), rounds=1).summary


def test_noise_of_losses_below_that_of_a_step_is_refused():
    with pytest.raises(InputError, match=r"privacy.loss_noise must be greater than the noise multiplier of a step"):
        Simulation(scenario(**{"privacy.loss_noise": 0.5}), LargestLoss(), [0], learning=True)
    Simulation(scenario(**{"privacy.loss_noise": 0.5}), "lane", [0])  # no losses are released


@pytest.mark.parametrize("key", ["loss_clip", "loss_noise"])
@pytest.mark.parametrize("value", [0.0, -1.0, 2e6, float("nan"), float("inf")])
def test_clip_and_noise_of_losses_are_positive_and_bounded(key, value):
    with pytest.raises(InputError, match=f"privacy.{key} must be"):
        scenario(**{f"privacy.{key}": value})


def test_a_run_without_learning_is_refused():
    message = "policy largest-loss requires losses, which clients report when they train: run it with learning"
    with pytest.raises(InputError, match=message):
        simulate("quickstart", LargestLoss(), rounds=1, learning=False)
    with pytest.raises(InputError, match=message):
        sweep("quickstart", policies=[POLICY], grid={"network.clients": [10]}, seeds=1, learning=False)


def test_a_schedule_that_follows_from_training_is_not_saved():
    simulation = Simulation(scenario(), LargestLoss(), [0], learning=True)
    simulation.step()
    with pytest.raises(InputError, match="requires losses, so its schedule cannot be trained from later"):
        simulation.schedule()


def test_the_command_line_refuses_before_anything_is_written(tmp_path):
    for options, message in (
        (("--no-learning",), "run it with learning"),
        (("--save-schedule", str(tmp_path / "s.npz")), "its schedule cannot be trained from later"),
    ):
        out = tmp_path / "run"
        words = ("run", "quickstart", "--policy", POLICY, "--rounds", "2", "--out", str(out))
        result = fedlane(*words, *options, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert not out.exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "losses"
    simulate(scenario(rounds=3), POLICY, seeds=1).save(path)
    return path


@pytest.mark.slow
def test_a_run_can_be_replayed_on_the_same_class_of_device_only(folder):
    stored = Run.load(folder)
    simulation = prepare_replay(stored, "cpu")
    simulation.play()
    assert simulation.result().assignments.equals(stored.assignments)
    other = RunSettings.from_values({**stored.settings.model_dump(), "device": "cuda"})
    with pytest.raises(InputError, match="which another class of device computes differently: replay it with"):
        prepare_replay(replace(stored, settings=other), "cpu")


@pytest.mark.slow
def test_the_audit_of_a_run_attacks_the_losses_that_it_released(folder, tmp_path):
    _, (target,) = run_targets(folder, trials=400)
    query, released = target.spec.loss_query, json.loads((folder / "summary.json").read_text())["privacy"]["losses"]
    assert (query.noise, target.plan.loss_noise) == (4.0, 4.0)
    assert np.all(query.first_step_noise == pytest.approx(released["first_step_noise"]["largest"]))
    simulate(scenario(rounds=3), learning=False).save(tmp_path / "plain")
    _, (target,) = run_targets(tmp_path / "plain", trials=400)
    assert target.spec.loss_query is None
