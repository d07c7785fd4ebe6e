"""The Gymnasium environment, against Gymnasium's checker, brute force and the simulator."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane import Scenario, Simulation, check_policy
from fedlane.rng import RoundStreams
from fedlane.scheduling import BatchPolicy, make_policy
from support.parts import missing

pytestmark = pytest.mark.slow

try:
    import gymnasium

    import fedlane.gym as fg
except ModuleNotFoundError:
    gymnasium = fg = None

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _gymnasium():
    if gymnasium is None:
        missing("gymnasium is not installed (extra gym)")


def scores_of(assignment, channels):
    """Return 1 for each assigned pair and -1 for all others."""
    return np.where(assignment[..., None] == np.arange(channels), 1.0, -1.0).astype(np.float32)


def vector(count, **options):
    return gymnasium.make_vec(fg.ID, num_envs=count, vectorization_mode="vector_entry_point", **options)


def test_gymnasiums_checker_finds_nothing():
    """Warnings are errors in these tests."""
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(fg.ID, rounds=10).unwrapped)
    check_env(gymnasium.make(fg.ID, scenario="quickstart", rounds=10, render_mode="ansi").unwrapped)


@pytest.mark.parametrize("policy", ["lane", "random"])
@pytest.mark.parametrize("changes", [{}, {"network.fading": "rayleigh", "network.clients": 3, "network.channels": 5}])
def test_a_policys_assignments_give_the_simulations_rounds(policy, changes):
    """Delays, queues, punctuality and clock are exactly those of `simulate` with the same seed; the reward follows
    its formula."""
    scenario = Scenario.load("quickstart").with_values({"rounds": 90, "privacy.max_uploads": 30, **changes})
    simulation = Simulation(scenario, policy, [11])
    simulation.play()
    trace, channels = simulation.trace, scenario.network.channels
    slack, V = simulation.policy.quota_slack, 3.0
    env = gymnasium.make(fg.ID, scenario=scenario, V=V, quota_slack=slack)
    seen, info = env.reset(seed=11)
    assert info == {"seed": 11, "clock_s": 0.0}
    queue = np.zeros(scenario.network.clients)
    for t in range(90):
        assert seen[:, 0, fg.FEATURES.index("queue")] == pytest.approx(queue / (queue + 1), abs=1e-6)
        assert np.array_equal(seen[:, 0, fg.FEATURES.index("available")] > 0, trace.available[0, t])
        assignment = np.full(scenario.network.clients, -1)
        for channel, client in enumerate(trace.client[0, t]):
            if client >= 0:
                assignment[client] = channel
        seen, reward, terminated, truncated, info = env.step(scores_of(assignment, channels))
        assert np.array_equal(info["assignment"], assignment)
        assert info["delay_s"] == trace.delay_s[0, t]
        assert info["clock_s"] == pytest.approx(trace.delay_s[0, : t + 1].sum())
        assert (terminated, truncated) == (False, t == 89)
        served = info["punctual"].astype(float)
        shortfall = float(np.dot(queue, simulation.quota[0] - served))
        assert reward == pytest.approx(
            -trace.delay_s[0, t] / 5.0 - shortfall / (V * channels), abs=1e-5
        )  # queue: float
        queue = trace.queue[0, t].astype(np.float64)
    assert not trace.available[0, -1].all()  # some budget was spent during the run
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(scores_of(assignment, channels))


def test_the_vector_environment_agrees_with_single_ones():
    """Over two episodes, so the networks drawn for the second one agree as well."""
    many, seeds = vector(3, rounds=12, scenario="quickstart"), [4, 9, 17]
    singles = [gymnasium.make(fg.ID, rounds=12, scenario="quickstart") for _ in seeds]
    seen, info = many.reset(seed=seeds)
    firsts = [env.reset(seed=seed) for env, seed in zip(singles, seeds, strict=True)]
    assert np.array_equal(seen, np.stack([first[0] for first in firsts]))
    rng, ended = np.random.default_rng(0), False
    for _ in range(26):
        actions = rng.uniform(-0.3, 1.0, many.action_space.shape).astype(np.float32)
        seen, reward, terminated, truncated, info = many.step(actions)
        assert seen in many.observation_space
        if ended:  # the step that starts the next episode
            outcomes = [
                (*env.reset()[:1], 0.0, False, False, {"seed": env.unwrapped.episode.seeds[0]}) for env in singles
            ]
        else:
            outcomes = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        for k, (observation, gain, _, end, single_info) in enumerate(outcomes):
            assert np.array_equal(seen[k], observation)
            assert reward[k] == pytest.approx(gain)
            assert truncated[k] == end
            assert not terminated[k]
            for key, value in single_info.items():
                assert info[f"_{key}"][k]
                assert np.array_equal(info[key][k], value)
        ended = bool(truncated.all())
    assert set(info["seed"]) & set(seeds) == set()
    assert np.array_equal(many.reset(seed=4)[0], many.reset(seed=[4, 5, 6])[0])


def test_networks_can_be_given():
    env = vector(20, rounds=2, networks=[3, 8])
    assert set(env.reset()[1]["seed"]) == {3, 8}
    single = gymnasium.make(fg.ID, rounds=2, networks=[3])
    assert single.reset()[1]["seed"] == 3
    assert np.array_equal(single.reset()[0], single.reset(seed=3)[0])


def test_scores_give_the_best_matching():
    """Against all matchings: as many pairs with scores of at least 0 as possible, then the largest sum."""
    rng = np.random.default_rng(5)
    for clients, channels in ((4, 3), (3, 4), (1, 2), (4, 4)):
        for _ in range(40):
            scores = rng.uniform(-1, 1, (1, clients, channels))
            available = rng.random((1, clients)) < 0.8
            channels_of = fg.matched(scores, available)[0]
            best = (0, 0.0)
            for choice in itertools.product(range(-1, channels), repeat=clients):
                used = [(i, j) for i, j in enumerate(choice) if j >= 0]
                allowed = all(scores[0, i, j] >= 0 and available[0, i] for i, j in used)
                if allowed and len({j for _, j in used}) == len(used):
                    best = max(best, (len(used), sum(scores[0, i, j] for i, j in used)))
            used = [(i, j) for i, j in enumerate(channels_of) if j >= 0]
            assert all(scores[0, i, j] >= 0 and available[0, i] for i, j in used)
            assert (len(used), sum(scores[0, i, j] for i, j in used)) == (best[0], pytest.approx(best[1]))


def test_the_observation_reports_past_rounds():
    env = gymnasium.make(fg.ID, rounds=30, quota_slack=0.0).unwrapped
    seen, _ = env.reset(seed=2)
    tried = np.zeros(seen.shape[:2])
    total, in_time, last = np.zeros_like(tried), np.zeros_like(tried), np.zeros_like(tried)
    rng = np.random.default_rng(1)
    for t in range(30):
        features = dict(zip(fg.FEATURES, np.moveaxis(seen, 2, 0), strict=True))
        n = np.maximum(tried, 1)
        for name, truth in (("reward", total / n), ("success", in_time / n), ("count", tried / (tried + 10))):
            assert features[name] == pytest.approx(truth, abs=1e-6)
        assert features["last"] == pytest.approx(last, abs=1e-6)
        assert features["round"] == pytest.approx(np.full_like(tried, t / 30))
        assert features["quota"] == pytest.approx(np.repeat(env.episode.rounds.quota[0][:, None], 4, 1), abs=1e-6)
        seen, *_, info = env.step(rng.uniform(0, 1, tried.shape).astype(np.float32))
        for client in np.flatnonzero(info["assignment"] >= 0):
            pair = client, info["assignment"][client]
            share = env._last.arrivals.delays.total_s[0, client] / 5.0
            tried[pair] += 1
            total[pair] += max(1 - share, 0)
            in_time[pair] += share <= 1
            last[pair] = min(share, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "paper-fmnst"}, "did you mean 'paper-fmnist'"),
        ({"V": 0}, "V must be greater than 0, got 0"),
        ({"quota_slack": 1.0}, "quota_slack must be at least 0 and less than 1, got 1.0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"networks": []}, "networks must be one or more seeds of at least 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message.replace("(", ".")):
        fg.SchedulingEnv(**options)


def test_bad_actions_are_refused():
    env = fg.SchedulingEnv(rounds=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="an action must have shape"):
        env.step(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="an action must have shape"):
        env.step(np.zeros((4, 10), np.float32))  # the right number of scores in the wrong shape
    with pytest.raises(ValueError, match="scores must be finite"):
        env.step(np.full((10, 4), np.nan, np.float32))
    with pytest.raises(ValueError, match="seed must be one number or 2, got 3"):
        fg.SchedulingVectorEnv(2, rounds=3).reset(seed=[1, 2, 3])


def test_a_round_is_rendered_as_text():
    env = gymnasium.make(fg.ID, rounds=3, render_mode="ansi")
    env.reset(seed=0)
    _, _, _, _, info = env.step(np.ones((10, 4), np.float32))
    lines = env.render().splitlines()
    assert lines[0] == f"round 1, {info['clock_s']:.1f} s of simulated time"
    assert len(lines) == 1 + (info["assignment"] >= 0).sum() == 5


def test_the_example_learns_and_is_a_policy(tmp_path, monkeypatch):
    """A short training improves the agent, and the result passes the checks of a policy."""
    import torch

    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    import policy_gradient as example

    monkeypatch.setattr(example, "NETWORKS", 2)
    monkeypatch.setattr(example, "ROUNDS", 30)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        before, after = (example.train(updates=count) for count in (0, 12))
    finally:
        torch.set_num_threads(threads)
    results = {}
    for name, agent in (("before", before), ("after", after)):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: value.numpy() for key, value in agent.state_dict().items()})
        policy = make_policy(f"policy-gradient:weights={path}")
        assert isinstance(policy, BatchPolicy)
        results[name] = played(policy, seeds=range(20, 40), rounds=30)
    check_policy(policy)
    assert results["after"] > results["before"] + 0.1
    with pytest.raises(ValueError, match=r"weights policy_gradient.npz cannot be read"):
        example.loaded(example.WEIGHTS)


def played(policy, seeds, rounds):
    """Return the mean reward per round when the policy acts in the environment."""
    env = vector(len(seeds), rounds=rounds)
    env.reset(seed=list(seeds))
    rewards, streams = [], RoundStreams(seeds, "policy")
    for t in range(rounds):  # what the agent remembers is the policy's state
        assignment = policy.select(env.episode.rounds.state, env.episode.context, streams.at(t))
        _, reward, *_ = env.step(scores_of(assignment, 4))
        rewards.append(reward)
    return float(np.mean(rewards))


def test_a_missing_extra_is_reported_in_one_line():
    code = "import sys; sys.modules['gymnasium'] = None\nimport fedlane.gym"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: fedlane.gym needs the extra gym: pip install 'fedlane[gym]'" in result.stderr


def test_flat_spaces_hold_the_same_numbers():
    """A flat environment plays the same rounds as one with the full arrays, and passes Gymnasium's checker."""
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(fg.ID, scenario="quickstart", rounds=10, flat=True).unwrapped)
    full, flat = (gymnasium.make(fg.ID, scenario="quickstart", rounds=5, flat=option) for option in (False, True))
    many = vector(2, scenario="quickstart", rounds=5, flat=True)
    assert flat.observation_space.shape == (320,)
    assert many.observation_space.shape == (2, 320)
    rng = np.random.default_rng(3)
    seen, vector_seen, rows = full.reset(seed=8)[0], flat.reset(seed=8)[0], many.reset(seed=[8, 9])[0]
    for _ in range(5):
        assert np.array_equal(seen.ravel(), vector_seen)
        assert np.array_equal(rows[0], vector_seen)
        scores = rng.uniform(-1, 1, (10, 4)).astype(np.float32)
        seen, reward, *_ = full.step(scores)
        vector_seen, flat_reward, *_ = flat.step(scores.ravel())
        rows, rewards, *_ = many.step(np.stack([scores.ravel()] * 2))
        assert reward == flat_reward == rewards[0]
    flat.reset(seed=8)
    with pytest.raises(ValueError, match=r"an action must have shape \(40,\), got \(10, 4\)"):
        flat.unwrapped.step(np.zeros((10, 4), np.float32))
