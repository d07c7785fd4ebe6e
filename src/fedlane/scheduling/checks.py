"""The contract that every policy keeps, as one call: ``check_policy(MyPolicy())``.

A policy that passes runs in the simulator, in a comparison and in a real federation.
"""

import io
from collections.abc import Iterator, Sequence

import numpy as np

from fedlane.records import BoolArray, Context, DelayDistributions, Delays, Feedback, IntArray, Problem, State
from fedlane.rng import RoundStreams, generator
from fedlane.scheduling.policy import REQUIREMENTS, Policy, SinglePolicy, lift

_SIZES = ((5, 2), (3, 3), (2, 5), (1, 1), (4, 1), (1, 3))
_SEEDS = (0, 7, 11)
_ROUNDS = 25
_CELLS = 32


class PolicyError(AssertionError):
    """A policy breaks the contract; the message says which rule, where."""


def check_policy(policy: Policy | SinglePolicy) -> None:
    """Play small made-up networks and raise `PolicyError` on the first broken rule.

    Checked, on U > N, U = N, U < N, one client and one channel, with clients that become unavailable, all at the end:
    the assignment is a matching of available clients; the state is arrays with a replica axis that survive a save; the
    same seed gives the same rounds; a replica alone gives what it gives among others; `select` changes neither the
    state nor what it is shown.
    """
    if isinstance(policy, SinglePolicy):
        policy = lift(policy)
    strange = policy.requires - REQUIREMENTS
    if strange:
        raise PolicyError(f"requires {sorted(strange)}: known are {sorted(REQUIREMENTS)}")
    if not 0 <= policy.quota_slack < 1:
        raise PolicyError(f"quota_slack must be at least 0 and less than 1, got {policy.quota_slack}")
    for clients, channels in _SIZES:
        together = list(_play(policy, clients, channels, _SEEDS))
        if any(
            not np.array_equal(a, b) for a, b in zip(together, _play(policy, clients, channels, _SEEDS), strict=True)
        ):
            raise PolicyError(f"{clients} clients, {channels} channels: the same seeds gave different rounds")
        for r, seed in enumerate(_SEEDS):
            for round, alone in enumerate(_play(policy, clients, channels, (seed,))):
                if not np.array_equal(alone[0], together[round][r]):
                    raise PolicyError(
                        f"{clients} clients, {channels} channels, round {round}: seed {seed} alone got "
                        f"{alone[0].tolist()}, among others {together[round][r].tolist()}"
                    )


def check_assignment(assignment: IntArray, available: BoolArray, channels: int, where: str) -> None:
    """Raise `PolicyError` unless ``assignment`` (R, U) is a matching of available clients in every replica."""
    if not isinstance(assignment, np.ndarray) or not np.issubdtype(assignment.dtype, np.integer):
        raise PolicyError(
            f"{where}: select must return an integer array, got {getattr(assignment, 'dtype', type(assignment))}"
        )
    if assignment.shape != available.shape:
        raise PolicyError(f"{where}: select must return shape {available.shape}, got {assignment.shape}")
    if assignment.min() < -1 or assignment.max() >= channels:
        raise PolicyError(
            f"{where}: channels must lie in -1..{channels - 1}, got {assignment.min()}..{assignment.max()}"
        )
    replica, client = np.nonzero(assignment >= 0)
    if not available[replica, client].all():
        raise PolicyError(f"{where}: an unavailable client was assigned")
    used = np.bincount(replica * channels + assignment[replica, client], minlength=len(assignment) * channels)
    if used.max(initial=0) > 1:
        r, channel = divmod(int(used.argmax()), channels)
        raise PolicyError(f"{where}: channel {channel} was given to {used.max()} clients in replica {r}")


def _play(policy: Policy, clients: int, channels: int, seeds: Sequence[int]) -> Iterator[IntArray]:
    """The rounds of ``policy`` on a small made-up network, every rule of the contract checked on the way."""
    deadline_s = 4.0
    network = [_network(seed, clients, channels) for seed in seeds]
    quotas = np.full((len(seeds), clients), min(1.0, 0.8 * channels / clients))
    problem = Problem(clients, channels, _ROUNDS, deadline_s, quotas)
    state = policy.init(problem)
    streams = RoundStreams(seeds, "policy")
    for round in range(_ROUNDS):
        where = f"{clients} clients, {channels} channels, round {round}"
        _check_state(state, len(seeds), where)
        delay_s = np.stack(
            [
                scale * generator(seed, "d", round).exponential(size=scale.shape)
                for seed, scale in zip(seeds, network, strict=True)
            ]
        )
        available = np.stack([_available(seed, clients, round) for seed in seeds])
        context = _context(policy, round, available, delay_s, np.stack(network), deadline_s)
        before, shown = _bytes(state), available.copy()
        assignment = policy.select(state, context, streams.at(round))
        check_assignment(assignment, shown, channels, where)
        if _bytes(state) != before or not np.array_equal(available, shown):
            raise PolicyError(f"{where}: select changed the state or the context it was given")
        feedback = _feedback(round, assignment, delay_s, deadline_s)
        yield assignment.copy()
        state = _reloaded(policy.update(state, feedback))


def _network(seed: int, clients: int, channels: int) -> np.ndarray:
    return generator(seed, "check").uniform(0.5, 4.0, (clients, channels))


def _available(seed: int, clients: int, round: int) -> BoolArray:
    """Everybody at first, then some, in the end nobody."""
    if round >= _ROUNDS - 2:
        return np.zeros(clients, np.bool_)
    return generator(seed, "available", round).random(clients) < (1.0 if round < 10 else 0.5)


def _context(
    policy: Policy, round: int, available: BoolArray, delay_s: np.ndarray, scale: np.ndarray, deadline_s: float
) -> Context:
    """Everything that the policy requires, and nothing else."""
    needs = policy.requires
    cells = (np.arange(_CELLS) + 0.5) * deadline_s / _CELLS
    cdf = 1.0 - np.exp(-cells / scale[..., None])
    truth = DelayDistributions(cdf, 1.0 - np.exp(-deadline_s / scale), 0.0)
    return Context(
        round=round,
        available=available,
        losses=1.0 + delay_s.mean(axis=2) if "losses" in needs else None,
        channel_state=delay_s if "channel_state" in needs else None,
        distributions=truth if "distributions" in needs else None,
    )


def _feedback(round: int, assignment: IntArray, delay_s: np.ndarray, deadline_s: float) -> Feedback:
    total = np.take_along_axis(delay_s, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
    third = np.where(assignment >= 0, total, np.nan) / 3
    return Feedback(
        round, assignment, Delays(third, third.copy(), third.copy()), (assignment >= 0) & (total <= deadline_s)
    )


def _check_state(state: State, replicas: int, where: str) -> None:
    for key, array in state.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise PolicyError(f"{where}: state['{key}'] must be a plain array, got {type(array).__name__}")
        if array.ndim == 0 or len(array) != replicas:
            raise PolicyError(
                f"{where}: state['{key}'] must have a leading axis of {replicas} replicas, got {array.shape}"
            )


def _bytes(state: State) -> dict[str, bytes]:
    return {key: np.asarray(array).tobytes() for key, array in state.items()}


def _reloaded(state: State) -> State:
    """The state after a save and a load: whatever does not survive that is not state."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **state)
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as loaded:
        return dict(loaded)
