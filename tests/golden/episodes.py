"""Episodes of the Gymnasium environment with random scores."""

from typing import Any

import gymnasium
import numpy as np
from records import part

import fedlane.gym as fg
from fedlane import Scenario

STEPS, NETWORKS = 30, (4, 9, 17)
SCENARIOS = {
    "paper-fmnist": {},
    "churn": {"availability.mean_on_s": 15.0, "availability.mean_off_s": 10.0, "privacy.max_uploads": 8},
    "phones": {"energy.battery_j": 6.0},
}


def episode_records() -> dict[str, dict[str, Any]]:
    """The record of a single environment's episode on every scenario, and of a vector environment's two episodes."""
    single = {f"{name} single": _record(gymnasium.make(fg.ID, **_options(name, STEPS)), 4, STEPS) for name in SCENARIOS}
    options = {"num_envs": len(NETWORKS), "vectorization_mode": "vector_entry_point", **_options("churn", STEPS // 2)}
    return {**single, "churn vector": _record(gymnasium.make_vec(fg.ID, **options), list(NETWORKS), STEPS)}


def _options(name: str, rounds: int) -> dict[str, Any]:
    return {"scenario": Scenario.load(name).with_values(SCENARIOS[name]), "rounds": rounds, "V": 3.0}


def _record(env: Any, seed: Any, steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    seen, info = env.reset(seed=seed)
    observations, rewards, clocks, choices, ends = [seen], [], [info["clock_s"]], [], []
    for _ in range(steps):
        seen, reward, _, ended, info = env.step(rng.uniform(-0.3, 1.0, env.action_space.shape).astype(np.float32))
        observations.append(seen)
        rewards.append(reward)
        clocks.append(info["clock_s"])
        ends.append(ended)
        if "assignment" in info:  # not in the step that begins a vector environment's next episode
            choices.append(np.stack([info["assignment"], info["punctual"].astype(np.int64)]))
    return {
        "choices": part(np.array(choices), np.array(ends)),
        "observations": part(np.array(observations)),
        "rewards": part(np.array(rewards)),
        "clock": part(np.array(clocks)),
    }
