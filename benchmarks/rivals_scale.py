"""Processor time of a decision (select and update) of every policy, 1,000 clients on 100 channels by default.

python benchmarks/rivals_scale.py [POLICY ...] [--clients U] [--channels N] [--rounds T] [--from-start]

One replica on one core. Delays are exponential around a mean of each pair; losses are made up, because nothing trains.
Before the measurement, the policy learns from rounds in which every pair is used once; with --from-start it knows
nothing. The first decisions, in which kernels are loaded, are left out. A policy over 100 ms is marked, and the exit
status is then 1.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np

from fedlane import make_policy, policies
from fedlane.records import ClientLosses, Context, DelayDistributions, Delays, Feedback, Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling.policy import Choice, updated_queues
from fedlane.scheduling.registry import ALIASES

DEADLINE_S = 4.0
CELLS = 32
LIMIT_MS = 100.0
WARM_UP = 5
NOT_RANDOM = {f"mamab-{kind}": f"mamab-{kind}:T0=0.01" for kind in ("om", "gmba", "sw", "discounted")}
"""Policies whose first rounds are random matchings, and how to leave them out."""


def truth_of(mean_s: np.ndarray) -> DelayDistributions:
    """Return the distributions of exponential delays, (1, U, N)."""
    middles_s = (np.arange(CELLS) + 0.5) * DEADLINE_S / CELLS
    return DelayDistributions(
        cdf=(1.0 - np.exp(-middles_s / mean_s[..., None])).astype(np.float32),
        success=1.0 - np.exp(-DEADLINE_S / mean_s),
        standard_error=0.0,
    )


def decisions_ms(name: str, clients: int, channels: int, rounds: int, from_start: bool = False) -> np.ndarray:
    """Return the processor time of each decision after the warm-up, in milliseconds."""
    policy, rng = make_policy(name), np.random.default_rng(0)
    quotas = np.full((1, clients), 0.6 * channels / clients)
    forced = [] if from_start else list(every_pair(clients, channels))
    played = len(forced) + rounds
    problem = Problem(clients, channels, played, DEADLINE_S, quotas, rng.uniform(50.0, 500.0, (1, clients)))
    mean_s = rng.uniform(0.5, 6.0, (1, clients, channels))
    truth = truth_of(mean_s) if "distributions" in policy.requires else None
    state, streams, times_ms = policy.init(problem), RoundStreams([0], "policy"), []
    mean, rms = np.full((1, clients), np.nan), np.full((1, clients), np.nan)
    queue, previous = np.zeros((1, clients)), np.full((1, clients), -1, np.int64)
    for t in range(played):
        delay_s = mean_s * rng.exponential(size=mean_s.shape)
        losses = ClientLosses(mean.copy(), rms.copy(), protected=False) if "losses" in policy.requires else None
        context = Context.first(
            problem,
            round=t,
            queue=queue,
            previous=previous,
            losses=losses,
            channel_state=delay_s if "channel_state" in policy.requires else None,
            distributions=truth,
        )
        numbers = streams.at(t)
        start = time.process_time()
        chosen = forced[t] if t < len(forced) else policy.select(state, context, numbers)
        assignment = chosen.channel if isinstance(chosen, Choice) else chosen
        elapsed = time.process_time() - start
        total = np.take_along_axis(delay_s, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
        third = np.where(assignment >= 0, total, np.nan) / 3
        punctual = (assignment >= 0) & (total <= DEADLINE_S)
        feedback = Feedback(context, assignment, Delays(third, third, third), punctual)
        queue, previous = updated_queues(queue, policy.quotas(problem), punctual), assignment
        observed = feedback.observed()
        start = time.process_time()
        state = policy.update(state, observed)
        times_ms.append(1e3 * (elapsed + time.process_time() - start))
        mean[punctual] = rng.uniform(0.1, 2.5, punctual.sum())
        rms[punctual] = 1.2 * mean[punctual]
    return np.array(times_ms[len(forced) + WARM_UP :])


def every_pair(clients: int, channels: int) -> Iterator[np.ndarray]:
    """Yield assignments (1, U) in which each pair is used at least once."""
    for first in range(0, clients, channels):
        for shift in range(channels):
            assignment = np.full((1, clients), -1)
            block = np.arange(first, min(first + channels, clients))
            assignment[0, block] = (block + shift) % channels
            yield assignment


def main() -> int:
    """Print a line for every policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="*")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--from-start", action="store_true")
    options = parser.parse_args()
    slow = False
    for name in options.policies or [NOT_RANDOM.get(name, name) for name in policies() if name not in ALIASES]:
        times_ms = decisions_ms(name, options.clients, options.channels, options.rounds, options.from_start)
        over = np.mean(times_ms) > LIMIT_MS
        slow |= bool(over)
        figures = f"mean {np.mean(times_ms):6.1f}  median {np.median(times_ms):6.1f}  largest {times_ms.max():6.1f} ms"
        print(f"{name:26} {figures}{'  over the limit' if over else ''}", flush=True)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
