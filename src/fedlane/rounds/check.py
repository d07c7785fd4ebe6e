"""The contract of every policy, checked by one call: ``check_policy(MyPolicy())``.

A policy that passes runs in the simulator, in a comparison and in a real federation.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedlane.records import (
    BoolArray,
    ClientLosses,
    Context,
    DelayDistributions,
    Delays,
    FloatArray,
    IntArray,
    Problem,
    State,
)
from fedlane.rng import generator
from fedlane.rounds.rounds import Arrivals, Orders, PolicyError, Rounds
from fedlane.scheduling.policy import BatchPolicy, Policy, check_requirements, lift
from fedlane.validate import InputError

_SIZES = ((5, 2), (3, 3), (2, 5), (1, 1), (4, 1), (1, 3))
_SEEDS = (0, 7, 11)
_ROUNDS = 25
_CELLS = 32
_CLIENTS_BEFORE, _CLIENTS_AFTER, _RESIZED_ROUND = 4, 7, 8
"""With 2 channels, an axis of a state array that grows from 4 to 7 is an axis of clients."""


def check_policy(policy: BatchPolicy | Policy) -> None:
    """Run a policy on small artificial networks and raise on the first broken rule.

    The networks have more, as many or fewer clients than channels, including a single client and a single channel.
    Clients become unavailable, at the end all of them. The rules are:

    - The assignment is a matching of available clients.
    - The state consists of arrays with a replica axis that can be saved and loaded.
    - The same seed gives the same rounds.
    - A replica plays the same rounds alone as together with others.
    - `select` changes neither the state nor the context.
    - Predictions, if `select` states them, are in order and finite for every assigned client.
    - `check_state` accepts every state of a run.
    - `requires` names only what a run can supply.
    - `resize` keeps what was learned about the remaining clients; new clients start as in `init`.

    Args:
        policy: The policy.

    Raises:
        PolicyError: A rule is broken.

    Examples:
        >>> from fedlane import check_policy, make_policy
        >>> check_policy(make_policy("random"))
    """
    try:
        policy = lift(policy)
        check_requirements(policy)
    except InputError as error:
        raise PolicyError(str(error)) from None
    if not 0 <= policy.quota_slack < 1:
        raise PolicyError(f"quota_slack must be at least 0 and less than 1, got {policy.quota_slack}")
    for clients, channels in _SIZES:
        where = f"{clients} clients, {channels} channels"
        together = _rounds(policy, clients, channels, _SEEDS)
        again = _rounds(policy, clients, channels, _SEEDS)
        if any(not np.array_equal(*pair) for pair in zip(together, again, strict=True)):
            raise PolicyError(f"{where}: the same seeds gave different rounds")
        for r, seed in enumerate(_SEEDS):
            for round, alone in enumerate(_rounds(policy, clients, channels, (seed,))):
                if not np.array_equal(alone[0], together[round][r]):
                    raise PolicyError(
                        f"{where}, round {round}: seed {seed} alone got {alone[0].tolist()}, "
                        f"among others {together[round][r].tolist()}"
                    )
    _check_resize(policy)


def _check_resize(policy: BatchPolicy) -> None:
    """Add clients in the middle of a run, check the state before and after, and finish the run."""
    old, new = _problem(_CLIENTS_BEFORE, 2, _SEEDS), _problem(_CLIENTS_AFTER, 2, _SEEDS)
    where = f"resize from {old.clients} to {new.clients} clients"
    first, fresh = policy.init(old), policy.init(new)
    rounds = Rounds(policy, old, _SEEDS)
    for _ in _run(rounds, range(_RESIZED_ROUND)):
        pass
    learned, same = _reloaded(rounds.state), policy.resize(_reloaded(rounds.state), old, old)
    if set(same) != set(learned) or any(not np.array_equal(same[key], learned[key]) for key in learned):
        raise PolicyError("resize changes the state although the problem stays the same")
    rounds.state = _reloaded(learned)
    rounds.grow(new)
    resized = rounds.state
    if set(resized) != set(fresh):
        raise PolicyError(f"{where}: the state must have the arrays {sorted(fresh)}, got {sorted(resized)}")
    for key, array in fresh.items():
        _check_resized(f"{where}: state['{key}']", first[key], array, learned[key], resized[key])
    for _ in _run(rounds, range(_RESIZED_ROUND, _ROUNDS)):
        pass


def _check_resized(where: str, first: np.ndarray, fresh: np.ndarray, learned: np.ndarray, resized: np.ndarray) -> None:
    """Check one array: initial values under the old and the new problem, before and after `resize`."""
    pairs = enumerate(zip(first.shape, fresh.shape, strict=True))
    axes = [axis for axis, sizes in pairs if axis > 0 and sizes == (_CLIENTS_BEFORE, _CLIENTS_AFTER)]
    if not axes:
        return
    if any(resized.shape[axis] != _CLIENTS_AFTER for axis in axes):
        raise PolicyError(f"{where} must have {_CLIENTS_AFTER} clients, got shape {resized.shape}")
    remaining = np.ix_(*(range(_CLIENTS_BEFORE if axis in axes else size) for axis, size in enumerate(fresh.shape)))
    from_problem = not np.array_equal(first, fresh[remaining])
    if not np.array_equal(resized[remaining], fresh[remaining] if from_problem else learned):
        raise PolicyError(f"{where} lost what was learned about the remaining clients")
    newcomers = range(_CLIENTS_BEFORE, _CLIENTS_AFTER)
    if any(not np.array_equal(resized.take(newcomers, axis), fresh.take(newcomers, axis)) for axis in axes):
        raise PolicyError(f"{where} of the new clients must be as in init")


def _problem(clients: int, channels: int, seeds: Sequence[int]) -> Problem:
    quotas = np.full((len(seeds), clients), min(1.0, 0.8 * channels / clients))
    sizes = np.tile(100.0 + 50.0 * np.arange(clients), (len(seeds), 1))
    return Problem(clients, channels, _ROUNDS, 4.0, quotas, sizes)


def _rounds(policy: BatchPolicy, clients: int, channels: int, seeds: Sequence[int]) -> list[IntArray]:
    """Return the assignments of a whole run."""
    return list(_run(Rounds(policy, _problem(clients, channels, seeds), seeds), range(_ROUNDS)))


def _run(rounds: Rounds, span: Iterable[int]) -> Iterator[IntArray]:
    """Yield the assignment of each round in a small artificial world; check every round."""
    policy, problem = rounds.policy, rounds.problem
    for round in span:
        where = f"{problem.clients} clients, {problem.channels} channels, round {round}"
        world = _World(problem, rounds.seeds, round)
        _check_state(rounds.state, problem.replicas, where)
        _check_restored(policy, rounds.state, problem, where)
        present, ready, required = world.present(rounds), world.ready(), world.required(policy)
        before = _bytes(rounds.state), _contents(rounds.context(present, ready, **required))
        try:
            orders = rounds.decide(present, ready, **required)
        except PolicyError as error:
            raise PolicyError(f"{where}: {str(error).partition(': ')[2]}") from None
        if (_bytes(rounds.state), _contents(rounds.seen)) != before:
            raise PolicyError(f"{where}: select changed the state or the context")
        chosen = orders.channel.copy()
        rounds.start(orders)
        rounds.settle(world.attempt(rounds, orders))
        rounds.state = _reloaded(rounds.state)
        yield chosen


class _World:
    """One round of a world without physics: exponential delays, and clients that cannot take an order."""

    def __init__(self, problem: Problem, seeds: Sequence[int], round: int) -> None:
        self.problem, self.seeds, self.round = problem, seeds, round
        shape = problem.clients, problem.channels
        self.scale_s = np.stack([generator(seed, "check").uniform(0.5, 4.0, shape) for seed in seeds])
        draws = [generator(seed, "d", round).exponential(size=shape) for seed in seeds]
        self.delay_s = self.scale_s * np.stack(draws)

    def present(self, rounds: Rounds) -> BoolArray:
        """Everybody."""
        return np.ones(self.problem.quotas.shape, np.bool_)

    def ready(self) -> BoolArray:
        """At first all clients, then some, at the end none."""
        if self.round >= _ROUNDS - 2:
            return np.zeros(self.problem.quotas.shape, np.bool_)
        share, clients = 1.0 if self.round < 10 else 0.5, self.problem.clients
        return np.stack([generator(seed, "available", self.round).random(clients) < share for seed in self.seeds])

    def required(self, policy: BatchPolicy) -> dict[str, Any]:
        """What the policy requires, and no more."""
        deadline_s, scale_s = self.problem.deadline_s, self.scale_s
        cells_s = (np.arange(_CELLS) + 0.5) * deadline_s / _CELLS
        cdf = 1.0 - np.exp(-cells_s / scale_s[..., None])
        known = {
            "channel_state": self.delay_s,
            "distributions": DelayDistributions(cdf, 1.0 - np.exp(-deadline_s / scale_s), 0.0),
            "losses": self._losses(),
        }
        return {name: value for name, value in known.items() if name in policy.requires}

    def _losses(self) -> ClientLosses:
        """Losses as clients report them with noise: at first of nobody, then of some, and some below 0."""
        clients = self.problem.clients
        draws = [generator(seed, "losses", self.round).normal(1.0, 0.8, (2, clients)) for seed in self.seeds]
        mean, rms = np.stack(draws, axis=1)
        reported = np.arange(clients) < self.round
        return ClientLosses(np.where(reported, mean, np.nan), np.where(reported, np.abs(rms), np.nan), protected=True)

    def attempt(self, rounds: Rounds, orders: Orders) -> Arrivals:
        """Every order is carried out."""
        total_s = np.take_along_axis(self.delay_s, np.maximum(orders.channel, 0)[..., None], axis=2)[..., 0]
        third_s: FloatArray = np.where(orders.given, total_s, np.nan) / 3
        everywhere = np.ones(orders.channel.shape, np.bool_)
        return Arrivals(Delays(third_s, third_s.copy(), third_s.copy()), everywhere, np.zeros(third_s.shape))


def _check_state(state: State, replicas: int, where: str) -> None:
    for key, array in state.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise PolicyError(f"{where}: state['{key}'] must be a plain array, got {type(array).__name__}")
        if array.ndim == 0 or len(array) != replicas:
            raise PolicyError(
                f"{where}: state['{key}'] must have a leading axis of {replicas} replicas, got {array.shape}"
            )


def _check_restored(policy: BatchPolicy, state: State, problem: Problem, where: str) -> None:
    try:
        restored = policy.check_state(state, problem)
    except InputError as error:
        raise PolicyError(f"{where}: check_state refuses a state of the run ({error})") from error
    same = (np.array_equal(restored[key], state[key], equal_nan=state[key].dtype.kind in "fc") for key in state)
    if set(restored) != set(state) or not all(same):
        raise PolicyError(f"{where}: check_state must return the state unchanged")


def _bytes(state: State) -> dict[str, bytes]:
    return {key: np.asarray(array).tobytes() for key, array in state.items()}


def _contents(context: Context) -> list[bytes]:
    """Return what a context holds, so that a change in place can be noticed."""
    records = (context, context.problem, context.losses, context.distributions)
    values = (value for record in records if record is not None for value in vars(record).values())
    return [value.tobytes() for value in values if isinstance(value, np.ndarray)]


def _reloaded(state: State) -> State:
    """Save and load the state, so that nothing outside its arrays survives."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **state)
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as loaded:
        return dict(loaded)
