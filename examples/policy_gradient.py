"""Train a policy with REINFORCE on FedLane's Gymnasium environment and compare it with the built-in policies.

cd examples
python policy_gradient.py       # trains for about a minute on one core, writes policy_gradient.npz, compares
fedlane compare paper-fmnist --policy policy_gradient:Learned --policy lane --seeds 20 --no-learning     # afterwards

The agent selects the pairs of a round one after the other. A small neural network scores each free pair from the pair's
features, their means over its client, its channel and all pairs, and the delay that the pair would add to the slowest
pair chosen so far. The next pair is drawn from the softmax of the scores. In training, several copies of the agent run
on every radio network, and a copy's advantage is its return relative to the other copies in the same round.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedlane import BatchPolicy, check_policy, register, simulate
from fedlane.gym import FEATURES, SchedulingVectorEnv, empty_memory, observation, remember
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.validate import InputError

WEIGHTS = "policy_gradient.npz"
NETWORKS, COPIES, ROUNDS, UPDATES = 6, 8, 60, 80
DISCOUNT, RATE = 0.95, 1e-2
REWARD, AVAILABLE = FEATURES.index("reward"), FEATURES.index("available")


class Agent(nn.Module):
    """Score pairs: observation (B, U, N, F) and normalised delay of the slowest pair so far (B,) -> (B, U, N)."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4 * len(FEATURES) + 2, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, seen: Tensor, slowest: Tensor) -> Tensor:
        """Compute the scores."""
        means = [seen.mean(dim=axes, keepdim=True).expand_as(seen) for axes in ((2,), (1,), (1, 2))]
        so_far = slowest[:, None, None].expand(seen.shape[:3])
        added = torch.clamp(1.0 - seen[..., REWARD] - so_far, min=0.0)
        inputs = torch.cat([seen, *means, so_far[..., None], added[..., None]], dim=-1)
        scores: Tensor = self.layers(inputs)[..., 0]
        return scores


@dataclass
class Chosen:
    """The choices of one round, in order: slowest pair before each choice, free pairs, and the chosen pair."""

    slowest: list[Tensor]
    free: list[Tensor]
    pair: list[Tensor]


def choose(agent: Agent, seen: Tensor, noise: torch.Generator | None) -> tuple[Tensor, Chosen]:
    """Choose a matching (B, U, N) of zeros and ones: at random with ``noise``, otherwise the best pair each time."""
    batch, clients, channels = seen.shape[:3]
    taken, slowest = torch.zeros(batch, clients, channels), torch.zeros(batch, dtype=seen.dtype)
    free = seen[..., AVAILABLE] > 0
    steps, rows = Chosen([], [], []), torch.arange(batch)
    for _ in range(min(clients, channels)):
        any_free = free.flatten(1).any(dim=1)
        allowed = torch.where(any_free[:, None], free.flatten(1), True)  # with no pair free, the choice is discarded
        scores = agent(seen, slowest).flatten(1).masked_fill(~allowed, -torch.inf)
        if noise is None:  # rounded, so that ties do not depend on the rest of the batch
            pair = (scores * 1e6).round().argmax(dim=1)
        else:
            pair = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=noise)[:, 0]
        steps.slowest.append(slowest)
        steps.free.append(allowed)
        steps.pair.append(pair)
        client, channel = pair // channels, pair % channels
        taken[rows, client, channel] = torch.maximum(taken[rows, client, channel], any_free.float())
        slowest = torch.maximum(slowest, 1.0 - seen[rows, client, channel, REWARD])
        free = free.clone()
        free[rows, client, :] = False
        free[rows, :, channel] = False
    return taken, steps


def train(seed: int = 0, updates: int = UPDATES) -> Agent:
    """Train an agent with REINFORCE; the baseline is the mean discounted return over the copies."""
    torch.manual_seed(seed)
    noise = torch.Generator().manual_seed(seed)
    agent = Agent()
    optimiser = torch.optim.Adam(agent.parameters(), RATE)
    env = SchedulingVectorEnv(NETWORKS * COPIES, "paper-fmnist", rounds=ROUNDS)
    for update in range(updates):
        first = 10_000 + NETWORKS * update  # networks never used in the comparison below
        networks = [first + k // COPIES for k in range(NETWORKS * COPIES)]
        observations, steps, rewards = play(agent, env, networks, noise)
        loss = -(log_probabilities(agent, observations, steps) * advantages(rewards)).mean()
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1.0 - 0.9 * update / updates)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimiser.step()
        if update % 10 == 0 or update == updates - 1:
            print(f"update {update:3}: mean reward per round {rewards.mean():.3f}", flush=True)
    return agent


def play(
    agent: Agent, env: SchedulingVectorEnv, networks: list[int], noise: torch.Generator
) -> tuple[list[Tensor], list[Chosen], Tensor]:
    """Run one episode on every network and return the observations, the choices and the rewards (rounds, R)."""
    seen, _ = env.reset(seed=networks)
    observations, steps, rewards = [], [], []
    with torch.no_grad():
        for _ in range(ROUNDS):
            observed = torch.from_numpy(seen)
            taken, chosen = choose(agent, observed, noise)
            seen, reward, _, _, _ = env.step((2.0 * taken - 1.0).numpy())  # 1: chosen, -1: excluded
            observations.append(observed)
            steps.append(chosen)
            rewards.append(torch.from_numpy(reward))
    return observations, steps, torch.stack(rewards)


def log_probabilities(agent: Agent, observations: list[Tensor], steps: list[Chosen]) -> Tensor:
    """Return the log-probability of all choices in each round, (rounds, R)."""
    picks = len(steps[0].pair)
    seen = torch.cat([seen for seen in observations for _ in range(picks)])
    scores = agent(seen, torch.cat([slowest for step in steps for slowest in step.slowest])).flatten(1)
    scores = scores.masked_fill(~torch.cat([free for step in steps for free in step.free]), -torch.inf)
    pair = torch.cat([pair for step in steps for pair in step.pair])
    chosen = torch.log_softmax(scores, dim=1).gather(1, pair[:, None])[:, 0]
    return chosen.reshape(len(steps), picks, -1).sum(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """Return the discounted return from each round on, minus the mean over the network's copies, standardised."""
    returns = rewards.clone()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += DISCOUNT * returns[t + 1]
    by_network = returns.reshape(len(returns), NETWORKS, COPIES)
    centred = (by_network - by_network.mean(dim=2, keepdim=True)).reshape(returns.shape)
    return (centred / (centred.std() + 1e-8)).float()


@register
@dataclass(frozen=True)
class Learned(BatchPolicy):
    """The trained agent as a policy, whose state is the environment's memory."""

    name: ClassVar[str] = "policy-gradient"
    summary: ClassVar[str] = "trained by REINFORCE in examples/policy_gradient.py"

    weights: str = WEIGHTS
    quota_slack: float = 0.125

    def init(self, problem: Problem) -> State:
        loaded(self.weights)  # report a missing file before the first round
        return empty_memory(problem)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        with torch.no_grad():
            observed = torch.from_numpy(observation(state, context, self.quotas(context.problem))).double()
            taken, _ = choose(loaded(self.weights), observed, None)
        pairs = taken.numpy() > 0
        return np.where(pairs.any(axis=2), pairs.argmax(axis=2), -1)

    def update(self, state: State, feedback: Feedback) -> State:
        return remember(state, feedback)


@lru_cache
def loaded(path: str) -> Agent:
    """Load an agent from a file, in double precision."""
    agent = Agent()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            agent.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    except OSError as error:
        raise InputError(f"weights {path} cannot be read: run policy_gradient.py first") from error
    return agent.double()


def main() -> None:
    """Train the agent, save its weights, and compare it with other policies."""
    torch.set_num_threads(1)
    agent = train()
    np.savez(WEIGHTS, **{name: value.numpy() for name, value in agent.state_dict().items()})
    print(f"Wrote {Path(WEIGHTS)}")
    check_policy(Learned())
    for policy in (Learned(), "lane", "mamab-om", "random"):
        result = simulate("paper-fmnist", policy, seeds=range(20), learning=False).summary
        delay_s, participation = result["cumulative_delay_s"]["mean"], result["min_participation"]["mean"]
        print(f"{result['policy']:16} {delay_s:7.0f} s of simulated time, min. participation {participation:.2f}")


if __name__ == "__main__":
    main()
