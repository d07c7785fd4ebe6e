"""A policy that learns by itself: REINFORCE on FedLane's Gymnasium environment, then set beside the others.

cd examples
python policy_gradient.py       # trains for about a minute on one core, writes policy_gradient.npz, compares
fedlane compare paper-fmnist --policy policy_gradient:Learned --policy lane --seeds 20 --no-learning     # afterwards

The agent fills a round pair by pair. Each free pair gets a score from a small network that sees the pair's features,
their means over its client, its channel and all pairs, and what the pair would add to the slowest one chosen so far;
the next pair is drawn from the softmax of the scores. In training every network is played by several copies at once,
and a copy is rewarded for doing better than the others on the same network in the same round.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedlane import Policy, check_policy, register, simulate
from fedlane.gym import FEATURES, SchedulingVectorEnv, empty_memory, observation, remember
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.validate import InputError

WEIGHTS = "policy_gradient.npz"
NETWORKS, COPIES, ROUNDS, UPDATES = 6, 8, 60, 80
DISCOUNT, RATE = 0.95, 1e-2
REWARD, AVAILABLE = FEATURES.index("reward"), FEATURES.index("available")


class Agent(nn.Module):
    """Scores of pairs: observation (B, U, N, F) and the slowest pair chosen so far (B,) -> (B, U, N)."""

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
        around = [seen.mean(dim=axes, keepdim=True).expand_as(seen) for axes in ((2,), (1,), (1, 2))]
        so_far = slowest[:, None, None].expand(seen.shape[:3])
        added = torch.clamp(1.0 - seen[..., REWARD] - so_far, min=0.0)
        inputs = torch.cat([seen, *around, so_far[..., None], added[..., None]], dim=-1)
        scores: Tensor = self.layers(inputs)[..., 0]
        return scores


@dataclass
class Chosen:
    """One pair after the other, of one round: what was seen, what was free, what was taken."""

    slowest: list[Tensor]
    free: list[Tensor]
    pair: list[Tensor]


def choose(agent: Agent, seen: Tensor, noise: torch.Generator | None) -> tuple[Tensor, Chosen]:
    """A matching (B, U, N) of zeros and ones; drawn with ``noise``, else the best pair each time."""
    batch, clients, channels = seen.shape[:3]
    taken, slowest = torch.zeros(batch, clients, channels), torch.zeros(batch, dtype=seen.dtype)
    free = seen[..., AVAILABLE] > 0
    steps, every = Chosen([], [], []), torch.arange(batch)
    for _ in range(min(clients, channels)):
        some = free.flatten(1).any(dim=1)
        allowed = torch.where(some[:, None], free.flatten(1), True)  # nothing left: any pair, and it is not taken
        scores = agent(seen, slowest).flatten(1).masked_fill(~allowed, -torch.inf)
        if noise is None:  # rounded, so that equal pairs stay equal whatever else is in the batch
            pair = (scores * 1e6).round().argmax(dim=1)
        else:
            pair = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=noise)[:, 0]
        steps.slowest.append(slowest)
        steps.free.append(allowed)
        steps.pair.append(pair)
        client, channel = pair // channels, pair % channels
        taken[every, client, channel] = torch.maximum(taken[every, client, channel], some.float())
        slowest = torch.maximum(slowest, 1.0 - seen[every, client, channel, REWARD])
        free = free.clone()
        free[every, client, :] = False
        free[every, :, channel] = False
    return taken, steps


def train(seed: int = 0, updates: int = UPDATES) -> Agent:
    """REINFORCE: raise the log-probability of what did better than the copies' mean, discounted to the end."""
    torch.manual_seed(seed)
    noise = torch.Generator().manual_seed(seed)
    agent = Agent()
    optimiser = torch.optim.Adam(agent.parameters(), RATE)
    env = SchedulingVectorEnv(NETWORKS * COPIES, "paper-fmnist", rounds=ROUNDS)
    for update in range(updates):
        first = 10_000 + NETWORKS * update  # networks never used in the comparison below
        networks = [first + k // COPIES for k in range(NETWORKS * COPIES)]
        looks, steps, rewards = play(agent, env, networks, noise)
        loss = -(log_probabilities(agent, looks, steps) * advantages(rewards)).mean()
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1.0 - 0.9 * update / updates)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimiser.step()
        if update % 10 == 0 or update == updates - 1:
            print(f"update {update:3}: mean reward of a round {rewards.mean():.3f}", flush=True)
    return agent


def play(
    agent: Agent, env: SchedulingVectorEnv, networks: list[int], noise: torch.Generator
) -> tuple[list[Tensor], list[Chosen], Tensor]:
    """One episode on every network: what was seen and chosen, and the rewards (rounds, R)."""
    seen, _ = env.reset(seed=networks)
    looks, steps, rewards = [], [], []
    with torch.no_grad():
        for _ in range(ROUNDS):
            look = torch.from_numpy(seen)
            taken, chosen = choose(agent, look, noise)
            seen, reward, _, _, _ = env.step((2.0 * taken - 1.0).numpy())  # 1 for a chosen pair, -1 forbids the others
            looks.append(look)
            steps.append(chosen)
            rewards.append(torch.from_numpy(reward))
    return looks, steps, torch.stack(rewards)


def log_probabilities(agent: Agent, looks: list[Tensor], steps: list[Chosen]) -> Tensor:
    """(rounds, R): of all the pairs that a round chose."""
    picks = len(steps[0].pair)
    seen = torch.cat([look for look in looks for _ in range(picks)])
    scores = agent(seen, torch.cat([slowest for one in steps for slowest in one.slowest])).flatten(1)
    scores = scores.masked_fill(~torch.cat([free for one in steps for free in one.free]), -torch.inf)
    pair = torch.cat([pair for one in steps for pair in one.pair])
    chosen = torch.log_softmax(scores, dim=1).gather(1, pair[:, None])[:, 0]
    return chosen.reshape(len(steps), picks, -1).sum(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """Discounted reward from each round on, less the mean over the network's copies, in standard deviations."""
    returns = rewards.clone()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += DISCOUNT * returns[t + 1]
    apart = returns.reshape(len(returns), NETWORKS, COPIES)
    apart = (apart - apart.mean(dim=2, keepdim=True)).reshape(returns.shape)
    return (apart / (apart.std() + 1e-8)).float()


@register
@dataclass(frozen=True)
class Learned(Policy):
    """The trained agent as a policy: its state is the environment's memory."""

    name: ClassVar[str] = "policy-gradient"
    summary: ClassVar[str] = "trained by REINFORCE in examples/policy_gradient.py"

    weights: str = WEIGHTS
    quota_slack: float = 0.125

    def init(self, problem: Problem) -> State:
        loaded(self.weights)  # a missing file is said before the first round
        return empty_memory(problem, self.quotas(problem))

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        with torch.no_grad():
            look = torch.from_numpy(observation(state, context.round, context.available)).double()
            taken, _ = choose(loaded(self.weights), look, None)
        pairs = taken.numpy() > 0
        return np.where(pairs.any(axis=2), pairs.argmax(axis=2), -1)

    def update(self, state: State, feedback: Feedback) -> State:
        return remember(state, feedback)


@lru_cache
def loaded(path: str) -> Agent:
    """The agent of a file, in double precision."""
    agent = Agent()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            agent.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    except OSError as error:
        raise InputError(f"weights {path} cannot be read: run policy_gradient.py first") from error
    return agent.double()


def main() -> None:
    torch.set_num_threads(1)
    agent = train()
    np.savez(WEIGHTS, **{name: value.numpy() for name, value in agent.state_dict().items()})
    print(f"wrote {Path(WEIGHTS)}")
    check_policy(Learned())
    for policy in (Learned(), "lane", "mamab-om", "random"):
        result = simulate("paper-fmnist", policy, seeds=range(20), learning=False).summary
        delay, least = result["cumulative_delay_s"]["mean"], result["min_participation"]["mean"]
        print(f"{result['policy']:16} {delay:7.0f} s on the air, {least:.2f} of rounds for the client served least")


if __name__ == "__main__":
    main()
