"""CS-UCB-Q, the paper's Single-UCB: hand-worked rounds, a slow reference, its second name, and the former rule."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlane import Run, Scenario, Simulation
from fedlane.cli import app
from fedlane.records import Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling import make_policy, policies
from fedlane.scheduling.client_ucb import CsUcbQ
from fedlane.scheduling.registry import resolved_parameters
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError
from support.policy_rounds import DEADLINE_S, context_of, delays_of, rounds_of, run


def test_rounds_worked_by_hand():
    """Three clients, one channel, quotas 0.5, 0.3 and 0.2, beta 0.5; client 2 is always late.

    The bonus sqrt(2 ln t) of a client tried once exceeds 1 from t = 2 on, so every mean is clipped to 1 and the queues
    decide:

    t   D before the selection   index = 0.5 x 1 + 0.5 D   chosen
    1   0.5   0.3   0.2          0.75   0.65   0.60        0
    2   0.0   0.6   0.4          0.50   0.80   0.70        1      (0.5 + 0.5 - 1 = 0)
    3   0.5   0.0   0.6          0.75   0.50   0.80        2      (0.6 + 0.3 - 1 < 0)
    4   1.0   0.3   0.0          1.00   0.65   0.50        0      (client 2 was late, and its queue still falls)
    5   0.5   0.6   0.2          0.75   0.80   0.60        1
    """
    policy, problem = CsUcbQ(beta=0.5), Problem(3, 1, 100, DEADLINE_S, np.array([[0.5, 0.3, 0.2]]))
    indices = [(0.75, 0.65, 0.6), (0.5, 0.8, 0.7), (0.75, 0.5, 0.8), (1.0, 0.65, 0.5), (0.75, 0.8, 0.6)]
    rounds = rounds_of(policy, problem)
    for expected, chosen in zip(indices, (0, 1, 2, 0, 1), strict=True):
        context = rounds.context(np.ones((1, 3), bool))
        np.testing.assert_allclose(policy.index(rounds.state, context)[0], expected, atol=1e-12)
        channels = run(rounds, 1, lambda t, channel: delays_of(channel, [[1.0, 2.0, 9.0]]))
        assert np.flatnonzero(channels[0, 0] >= 0).tolist() == [chosen]
    assert rounds.state["count"].tolist() == [[2, 2, 1]]
    np.testing.assert_allclose(
        rounds.state["reward"], [[1.5, 1.0, 0.0]]
    )  # 1 - 1/4 and 1 - 2/4, twice each; 0 when late


def test_the_index_worked_by_hand():
    """t = 2: client 0 has mean 0.5 from 100 uploads, client 1 0.25 from 4, client 2 0.9 from 1, client 3 no upload.

    ln 2 = 0.693147, so the bonuses are sqrt(1.386294 / n) = 0.117741, 0.588705 and 1.177410.
    """
    policy, problem = CsUcbQ(beta=0.1), Problem(4, 2, 200, DEADLINE_S, np.array([[0.5, 0.25, 1.0, 0.25]]))
    state = {
        "count": np.array([[100, 4, 1, 0]]),
        "reward": np.array([[50.0, 1.0, 0.9, 0.0]]),
        "queue": np.array([[0.0, 2.0, 0.25, 3.0]]),
        "selected": np.array([[1, 0, 1, 0]]),
        "absent": np.zeros((1, 4), np.int64),
    }
    expected = [
        0.9 * (0.5 + 0.117741) + 0.1 * 0.0,  # 0 + 0.5 - 1 < 0
        0.9 * (0.25 + 0.588705) + 0.1 * 2.25,
        0.9 * 1.0 + 0.1 * 0.25,  # 0.9 + 1.177410 is clipped
        0.9 * 1.0 + 0.1 * 3.25,  # never tried
    ]
    index = policy.index(state, context_of(problem, 1))
    np.testing.assert_allclose(index[0], expected, rtol=1e-6)


def test_many_replicas_follow_a_slow_reference():
    """120 rounds of 20 replicas: the chosen clients have the largest indices of a loop over replicas and clients."""
    replicas, clients, channels, beta = 20, 7, 3, 0.05
    rng = np.random.default_rng(4)
    quotas = rng.uniform(0.1, 0.6, (replicas, clients))
    rounds = rounds_of(CsUcbQ(beta=beta), Problem(clients, channels, 120, DEADLINE_S, quotas), range(replicas))
    history = [[[] for _ in range(clients)] for _ in range(replicas)]
    queue, selected = np.zeros((replicas, clients)), np.zeros((replicas, clients))
    for t in range(120):
        available = rng.random((replicas, clients)) < 0.9
        delay_s = rng.exponential(2.0, (replicas, clients))
        assignment = run(
            rounds,
            1,
            lambda t, channel, delay_s=delay_s: delays_of(channel, delay_s),
            ready=lambda t, able=available: able,
        )[0]
        for r in range(replicas):
            index = np.zeros(clients)
            for i, rewards in enumerate(history[r]):
                queue[r, i] = max(queue[r, i] + quotas[r, i] - selected[r, i], 0.0)
                n = len(rewards)
                estimate = 1.0 if n == 0 else min(sum(rewards) / n + (2 * np.log(t + 1) / n) ** 0.5, 1.0)
                index[i] = (1 - beta) * estimate + beta * queue[r, i]
            served = assignment[r] >= 0
            assert not np.any(served & ~available[r])
            assert served.sum() == min(channels, available[r].sum())
            left = available[r] & ~served
            assert not left.any() or index[served].min() >= index[left].max() - 1e-9
            for i in np.flatnonzero(served):
                history[r][i].append(max(1 - delay_s[r, i] / DEADLINE_S, 0.0))
            selected[r] = served


def test_channels_and_ties_are_random():
    """2,000 replicas in the first round, when all clients are equal: each of the 4 x 2 pairs has probability 1/4."""
    problem = Problem(4, 2, 10, DEADLINE_S, np.full((2000, 4), 0.5))
    policy = CsUcbQ()
    chosen = policy.select(policy.init(problem), context_of(problem), RoundStreams(range(2000), "policy").at(0))
    for client in range(4):
        for channel in range(2):
            assert np.mean(chosen[:, client] == channel) == pytest.approx(0.25, abs=5 * np.sqrt(0.1875 / 2000))


def test_single_ucb_is_another_name():
    assert policies()["single-ucb"] is policies()["cs-ucb-q"]
    settings = {"single-ucb": {"beta": 0.3}}
    assert make_policy("single-ucb", settings).beta == make_policy("cs-ucb-q", settings).beta == 0.3
    both = {"single-ucb": {"beta": 0.3}, "cs-ucb-q": {"beta": 0.7}}
    assert [make_policy(name, both).beta for name in ("single-ucb", "cs-ucb-q")] == [0.3, 0.7]
    assert make_policy("single-ucb:beta=0.01", both).beta == 0.01
    assert resolved_parameters(make_policy("single-ucb")) == {"beta": 0.1}
    listed = CliRunner().invoke(app, ["list", "policies", "--json"]).output
    assert '"policy": "single-ucb", "parameters": "beta=0.1", "what it is": "another name of cs-ucb-q"' in listed


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_beta_out_of_bounds_is_one_line(beta):
    with pytest.raises(InputError, match=f"policy cs-ucb-q: beta must be at least 0 and at most 1, got {beta}"):
        make_policy(f"cs-ucb-q:beta={beta}")


def test_a_new_run_of_the_former_single_ucb_exits_2_and_names_ucb_index(tmp_path):
    for options in (
        ["--policy", "single-ucb:exploration=0.1"],
        ["--policy", "single-ucb", "--set", "policies.single-ucb.exploration=0.1"],
    ):
        result = CliRunner().invoke(app, ["run", "quickstart", *options, "--out", str(tmp_path / "r"), "--no-learning"])
        error = result.exception
        assert isinstance(error, InputError)  # the entry point prints it and exits with status 2
        assert str(error).startswith("policy single-ucb has no parameter 'exploration'")
        assert str(error).endswith("the former single-ucb is called ucb-index")
        assert not (tmp_path / "r").exists()


def written_by_an_earlier_version(folder, label):
    """Write the folder of an interrupted run as the former single-ucb did."""
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": 20})
    simulation = Simulation(scenario, "ucb-index", [3])
    for _ in range(8):
        simulation.step()
    saved = replace(simulation.checkpoint(), label=label)
    RunFolder.create(folder).write(simulation.result(), checkpoint=saved, interrupted=True)
    path = folder / "scenario.toml"
    text = path.read_text().replace('policy = "ucb-index"', f'policy = "{label}"')
    path.write_text(text.replace("ucb-index", "single-ucb"))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["single-ucb", "single-ucb:exploration=0.1"])
def test_a_folder_of_the_former_single_ucb_opens_and_is_not_resumed(label, tmp_path):
    written_by_an_earlier_version(tmp_path / "r", label)
    assert len(Run.load(tmp_path / "r").rounds) == 8
    with pytest.raises(InputError, match="the former single-ucb is called ucb-index") as error:
        Simulation.resume(tmp_path / "r")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_say_who_was_absent_is_refused_by_its_version(tmp_path):
    """Version 1 had no array `absent`."""
    simulation = Simulation(Scenario.load("paper-fmnist").with_values({"rounds": 20}), "cs-ucb-q", [3])
    for _ in range(8):
        simulation.step()
    saved = simulation.checkpoint()
    assert saved.version == 2
    arrays = {name: array for name, array in saved.arrays.items() if name != "state.absent"}
    old = replace(saved, arrays=arrays, version=1)
    RunFolder.create(tmp_path / "r").write(simulation.result(), checkpoint=old, interrupted=True)
    with pytest.raises(InputError, match=r"played with version 1 of policy cs-ucb-q, and this is version 2$"):
        Simulation.resume(tmp_path / "r")


def test_a_state_without_queues_names_ucb_index():
    problem = Problem(3, 1, 10, DEADLINE_S, np.full((1, 3), 0.3))
    with pytest.raises(InputError, match="ucb-index"):
        CsUcbQ().check_state(make_policy("ucb-index").init(problem), problem)
