"""Train stable-baselines3's PPO on FedLane's vector environment and compare it with the built-in policies.

pip install 'fedlane[gym]' stable-baselines3
cd examples
python ppo.py       # trains for about two minutes on one core, then compares

The agent sees the features of every client-channel pair and returns one weight for each feature; the round uses the
matching with the largest weighted sum. `Trained` plays the same agent as a policy.
"""

from typing import ClassVar

import numpy as np
import torch
from stable_baselines3 import PPO

from fedlane import BatchPolicy, simulate
from fedlane.gym import empty_memory, index_scores, matched, observation, remember
from fedlane.gym.stable_baselines import SchedulingVecEnv
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng

NETWORKS = range(10_000, 20_000)
"""Seeds of the training networks; the comparison uses others."""
STEPS = 200_000


def train(steps: int = STEPS, seed: int = 0) -> PPO:
    """Train an agent for so many rounds, over 16 networks at a time."""
    env = SchedulingVecEnv(16, "paper-fmnist", rounds=60, networks=NETWORKS)
    agent = PPO(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        n_steps=60,
        batch_size=240,
        gamma=0.95,
        policy_kwargs={"log_std_init": -1.0},
        seed=seed,
        device="cpu",
    )
    return agent.learn(steps)


class Trained(BatchPolicy):
    """The trained agent as a policy for networks of the same size; its state is the environment's memory."""

    name: ClassVar[str] = "ppo"
    quota_slack = 0.125

    def __init__(self, agent: PPO) -> None:
        self.agent = agent

    def init(self, problem: Problem) -> State:
        return empty_memory(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        seen = observation(state, context, self.quotas(context.problem))
        # One network at a time, so that rounding does not depend on the others.
        weights = [self.agent.predict(row.reshape(1, -1), deterministic=True)[0][0] for row in seen]
        return matched(index_scores(seen, np.stack(weights)), context.available)

    def update(self, state: State, feedback: Feedback) -> State:
        return remember(state, feedback)


def main() -> None:
    """Train the agent and compare it with other policies."""
    torch.set_num_threads(1)
    agent = train()
    returns = [episode["r"] / 60 for episode in agent.ep_info_buffer or ()]
    print(f"mean reward per round in the last 100 episodes: {np.mean(returns):.3f}")
    for policy in (Trained(agent), "lane", "mamab-om", "random"):
        result = simulate("paper-fmnist", policy, seeds=range(20), learning=False).summary
        delay_s, participation = result["cumulative_delay_s"]["mean"], result["min_participation"]["mean"]
        print(f"{result['policy']:16} {delay_s:7.0f} s of simulated time, min. participation {participation:.2f}")


if __name__ == "__main__":
    main()
