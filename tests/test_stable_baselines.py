"""stable-baselines3 on the fast vector environment, with the real library."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane import simulate
from fedlane.validate import InputError
from support.parts import missing

pytestmark = pytest.mark.slow

try:
    import stable_baselines3

    import fedlane.gym as fg
    from fedlane.gym.stable_baselines import SchedulingVecEnv
except (ModuleNotFoundError, InputError):
    stable_baselines3 = None

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _stable_baselines():
    if stable_baselines3 is None:
        missing("stable-baselines3 is not installed (extra dev)")


@pytest.mark.parametrize("encoding", ["weights", "scores"])
def test_it_plays_the_rounds_of_the_vector_environment(encoding):
    """Over two episodes: the same networks, observations, rewards and assignments; new episodes start at once."""
    env = SchedulingVecEnv(3, "quickstart", rounds=6, encoding=encoding)
    plain = fg.SchedulingVectorEnv(3, "quickstart", rounds=6)
    env.seed(4)
    plain.seed_networks([4, 5, 6])
    seen, (expected, _) = env.reset(), plain.reset()
    assert seen.shape == (3, 10 * 4 * 8)
    rng, total = np.random.default_rng(0), np.zeros(3)
    for t in range(12):
        assert np.array_equal(seen, expected.reshape(3, -1))
        assert env.observation_space.contains(seen[0])
        actions = rng.uniform(-1, 1, (3, *env.action_space.shape)).astype(np.float32)
        scores = fg.index_scores(expected, actions) if encoding == "weights" else actions.reshape(3, 10, 4)
        seen, reward, done, info = env.step(actions)
        expected, expected_reward, _, truncated, values = plain.step(scores)
        total += expected_reward
        assert np.allclose(reward, expected_reward)
        assert np.array_equal(done, truncated)
        assert [entry["delay_s"] for entry in info] == values["delay_s"].tolist()
        if encoding == "weights":
            assert ((values["assignment"] >= 0).sum(axis=1) == 4).all()  # no channel is left idle
        if t % 6 == 5:
            assert done.all()
            assert all(entry["TimeLimit.truncated"] for entry in info)
            assert np.array_equal(info[1]["terminal_observation"], expected[1].ravel())
            assert [entry["episode"]["r"] for entry in info] == pytest.approx(total.tolist())
            assert info[0]["episode"]["l"] == 6
            total[:] = 0
            expected, *_, values = plain.step(scores)  # starts the next episode
            assert [entry["seed"] for entry in env.reset_infos] == values["seed"].tolist()


def test_a_weighted_sum_of_features_decides():
    seen = np.zeros((1, 3, 2, 8), np.float32)
    seen[0, :, :, 0] = [[0.2, 0.9], [0.8, 0.7], [0.1, 0.1]]  # reward
    seen[0, :, :, 4] = [[0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]  # queue
    available = np.ones((1, 3), bool)
    weights = np.zeros((2, 7))
    weights[0, 0], weights[1, 4] = 1.0, 1.0
    assert fg.matched(fg.index_scores(seen, weights[:1]), available).tolist() == [[1, 0, -1]]
    assert fg.matched(fg.index_scores(seen, weights[1:]), available)[0, 2] >= 0
    assert fg.index_scores(seen, -weights[:1]).min() == 0


def test_a_seed_draws_networks_and_is_none():
    """PPO(seed=0) must not train on network 0, which a comparison may use."""
    env = SchedulingVecEnv(4, "quickstart", rounds=2, networks=range(500, 600))
    env.seed(0)
    env.reset()
    first = [entry["seed"] for entry in env.reset_infos]
    assert all(500 <= seed < 600 for seed in first)
    env.seed(0)
    env.reset()
    assert [entry["seed"] for entry in env.reset_infos] == first


def test_wrong_use_is_refused():
    with pytest.raises(InputError, match=r"unknown encoding 'weight' \(did you mean 'weights'\?\)"):
        SchedulingVecEnv(2, encoding="weight")
    env = SchedulingVecEnv(2, "quickstart", rounds=3)
    env.reset()
    with pytest.raises(InputError, match=r"actions must be 2 rows of \(7,\), got \(2, 40\)"):
        env.step(np.zeros((2, 40), np.float32))
    for call in (lambda: env.set_attr("rounds", 4), lambda: env.env_method("reset")):
        with pytest.raises(InputError, match="rows of one environment"):
            call()
    assert env.get_attr("num_envs") == [2, 2]


def test_ppo_learns_and_is_a_policy(monkeypatch):
    """A few thousand rounds improve the reward; the same agent schedules runs, a seed alone as among others."""
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ppo

    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    torch.set_num_threads(1)
    try:
        rewards = []
        for steps in (1, 8_000):
            agent = ppo.train(steps)
            test = SchedulingVecEnv(20, "paper-fmnist", rounds=60, networks=range(20))
            test.seed(1)
            rewards.append(evaluate_policy(agent, test, n_eval_episodes=20, warn=False)[0] / 60)
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)
    assert rewards[1] > rewards[0] + 0.1
    policy = ppo.Trained(agent)
    together, alone = (simulate("paper-fmnist", policy, rounds=40, seeds=s, learning=False) for s in ([3, 4], [4]))
    assert together.rounds["delay_s"].to_pylist()[40:] == alone.rounds["delay_s"].to_pylist()


def test_a_missing_library_is_reported_in_one_line():
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\nimport fedlane.gym\nimport fedlane.gym.stable_baselines"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: fedlane.gym.stable_baselines needs stable-baselines3: pip install stable-base" in result.stderr
