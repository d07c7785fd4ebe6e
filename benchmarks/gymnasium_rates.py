"""Rounds per second of the Gymnasium environments on one core, and of stable-baselines3's PPO on the fast one.

python benchmarks/gymnasium_rates.py
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

import fedlane.gym
from fedlane.gym.stable_baselines import SchedulingVecEnv

NETWORKS, ROUNDS, REPETITIONS = 64, 100, 3


def rate(step: Callable[[], object], rounds_per_step: int, steps: int) -> float:
    """Return rounds per second: the best of some repetitions, after one warm-up step."""
    step()
    best = np.inf
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        best = min(best, time.perf_counter() - start)
    return steps * rounds_per_step / best


def vector_rate(mode: str) -> float:
    """Return the rate of one of Gymnasium's ways to step many networks."""
    env = gymnasium.make_vec(fedlane.gym.ID, num_envs=NETWORKS, vectorization_mode=mode, rounds=10_000)
    env.reset(seed=0)
    actions = env.action_space.sample()
    return rate(lambda: env.step(actions), NETWORKS, ROUNDS)


def adapter_rate() -> float:
    """Return the rate of the environment for stable-baselines3."""
    env = SchedulingVecEnv(NETWORKS, rounds=10_000)
    env.seed(0)
    env.reset()
    actions = np.tile(env.action_space.sample(), (NETWORKS, 1))
    return rate(lambda: env.step(actions), NETWORKS, ROUNDS)


def training_rate() -> float:
    """Return the rate of PPO with its default settings, whose own computation is included."""
    from stable_baselines3 import PPO

    agent: Any = PPO(
        "MlpPolicy", SchedulingVecEnv(NETWORKS, rounds=ROUNDS), n_steps=ROUNDS, batch_size=640, device="cpu"
    )
    return rate(lambda: agent.learn(NETWORKS * ROUNDS), NETWORKS * ROUNDS, 1)


def main() -> None:
    """Measure and print the rates."""
    torch.set_num_threads(1)
    for label, measured in (
        ("Gymnasium's sync vectorisation of single environments", vector_rate("sync")),
        ("SchedulingVectorEnv", vector_rate("vector_entry_point")),
        ("SchedulingVecEnv, for stable-baselines3", adapter_rate()),
        ("training of PPO on SchedulingVecEnv", training_rate()),
    ):
        print(f"{label}: {measured:,.0f} rounds a second with {NETWORKS} networks")


if __name__ == "__main__":
    main()
