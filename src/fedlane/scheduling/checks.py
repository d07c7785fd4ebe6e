"""The contract of every policy, checked by one call: ``check_policy(MyPolicy())``.

A policy that passes runs in the simulator, in a comparison and in a real federation.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedlane.delay_predictions import PredictedDelays
from fedlane.records import (
    BoolArray,
    ClientLosses,
    Context,
    DelayDistributions,
    Delays,
    Feedback,
    IntArray,
    Problem,
    State,
)
from fedlane.rng import RoundStreams, generator
from fedlane.scheduling.policy import Policy
from fedlane.scheduling.requirements import check_requirements
from fedlane.scheduling.single_policy import SinglePolicy, lift
from fedlane.validate import InputError

_SIZES = ((5, 2), (3, 3), (2, 5), (1, 1), (4, 1), (1, 3))
_SEEDS = (0, 7, 11)
_ROUNDS = 25
_CELLS = 32
_CLIENTS_BEFORE, _CLIENTS_AFTER, _RESIZED_ROUND = 4, 7, 8
"""With 2 channels, an axis of a state array that grows from 4 to 7 is an axis of clients."""


class PolicyError(AssertionError):
    """A policy breaks its contract; the message names the rule and where it was broken."""


def check_policy(policy: Policy | SinglePolicy) -> None:
    """Run a policy on small artificial networks and raise on the first broken rule.

    The networks have more, as many or fewer clients than channels, including a single client and a single channel.
    Clients become unavailable, at the end all of them. The rules are:

    - The assignment is a matching of available clients.
    - The state consists of arrays with a replica axis that can be saved and loaded.
    - The same seed gives the same rounds.
    - A replica plays the same rounds alone as together with others.
    - `select` and `predictions` change neither the state nor the context.
    - `predictions`, if the policy has them, are in order and finite for every assigned client.
    - `check_state` accepts every state of a run.
    - `requires` names only what a run can supply.
    - `resize` keeps what was learned about the remaining clients; new clients start as in `init`.

    Args:
        policy: The policy; a `SinglePolicy` is lifted first.

    Raises:
        PolicyError: A rule is broken.

    Examples:
        >>> from fedlane import check_policy, make_policy
        >>> check_policy(make_policy("random"))
    """
    if isinstance(policy, SinglePolicy):
        policy = lift(policy)
    try:
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


def check_predictions(predicted: PredictedDelays | None, assignment: IntArray, where: str) -> None:
    """Raise `PolicyError` unless predictions for an assignment (R, U), if there are any, are possible ones."""
    problem = "" if predicted is None else predicted.problem(assignment)
    if problem:
        raise PolicyError(f"{where}: {problem}")


def _check_resize(policy: Policy) -> None:
    """Add clients in the middle of a run, check the state before and after, and finish the run."""
    old, new = _problem(_CLIENTS_BEFORE, 2, _SEEDS), _problem(_CLIENTS_AFTER, 2, _SEEDS)
    where = f"resize from {old.clients} to {new.clients} clients"
    first, fresh = policy.init(old), policy.init(new)
    missing = sorted((policy.per_client or frozenset()) - set(fresh))
    if missing:
        raise PolicyError(f"per_client names {missing}, which are not in the state")
    state = list(_play(policy, old, _SEEDS, policy.init(old), range(_RESIZED_ROUND)))[-1][1]
    learned, same = _reloaded(state), policy.resize(_reloaded(state), old, old)
    if set(same) != set(learned) or any(not np.array_equal(same[key], learned[key]) for key in learned):
        raise PolicyError("resize changes the state although the problem stays the same")
    resized = policy.resize(_reloaded(state), old, new)
    if set(resized) != set(fresh):
        raise PolicyError(f"{where}: the state must have the arrays {sorted(fresh)}, got {sorted(resized)}")
    for key, array in fresh.items():
        _check_resized(f"{where}: state['{key}']", first[key], array, learned[key], resized[key])
    for _ in _play(policy, new, _SEEDS, resized, range(_RESIZED_ROUND, _ROUNDS)):
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


def _rounds(policy: Policy, clients: int, channels: int, seeds: Sequence[int]) -> list[IntArray]:
    """Return the assignments of a whole run."""
    problem = _problem(clients, channels, seeds)
    return [assignment for assignment, _ in _play(policy, problem, seeds, policy.init(problem), range(_ROUNDS))]


def _play(
    policy: Policy, problem: Problem, seeds: Sequence[int], state: State, rounds: Iterable[int]
) -> Iterator[tuple[IntArray, State]]:
    """Yield each round's assignment and the state after it, on a small artificial network; check every round."""
    network = [_network(seed, problem) for seed in seeds]
    streams = RoundStreams(seeds, "policy")
    for round in rounds:
        where = f"{problem.clients} clients, {problem.channels} channels, round {round}"
        _check_state(state, len(seeds), where)
        _check_restored(policy, state, problem, where)
        delay_s = np.stack(
            [
                scale * generator(seed, "d", round).exponential(size=scale.shape)
                for seed, scale in zip(seeds, network, strict=True)
            ]
        )
        available = np.stack([_available(seed, problem.clients, round) for seed in seeds])
        context = _context(policy, problem, round, available, delay_s, np.stack(network))
        if "losses" in policy.requires:
            context = replace(context, losses=_losses(seeds, problem.clients, round))
        before, shown = _bytes(state), available.copy()
        assignment = policy.select(state, context, streams.at(round))
        check_assignment(assignment, shown, problem.channels, where)
        if policy.predicts:
            again, predicted = policy.select_and_predict(state, context, streams.at(round))
            if predicted is None or not np.array_equal(again, assignment):
                raise PolicyError(f"{where}: select_and_predict must assign as select does, and predict")
            for stated in (predicted, policy.predictions(state, context, assignment)):
                check_predictions(stated, assignment, where)
        if _bytes(state) != before or not np.array_equal(available, shown):
            changer = "select or predictions" if policy.predicts else "select"
            raise PolicyError(f"{where}: {changer} changed the state or the context")
        chosen = assignment.copy()
        feedback = replace(_feedback(problem, round, assignment, delay_s), losses=context.losses)
        state = _reloaded(policy.update(state, feedback))
        yield chosen, state


def _network(seed: int, problem: Problem) -> np.ndarray:
    return generator(seed, "check").uniform(0.5, 4.0, (problem.clients, problem.channels))


def _available(seed: int, clients: int, round: int) -> BoolArray:
    """Return the available clients: at first all, then some, at the end none."""
    if round >= _ROUNDS - 2:
        return np.zeros(clients, np.bool_)
    return generator(seed, "available", round).random(clients) < (1.0 if round < 10 else 0.5)


def _losses(seeds: Sequence[int], clients: int, round: int) -> ClientLosses:
    """Return losses as clients report them with noise: at first of nobody, then of some, and some below 0."""
    draws = np.stack([generator(seed, "losses", round).normal(1.0, 0.8, (2, clients)) for seed in seeds], axis=1)
    reported = np.arange(clients) < round
    return ClientLosses(
        mean=np.where(reported, draws[0], np.nan), rms=np.where(reported, np.abs(draws[1]), np.nan), protected=True
    )


def _context(
    policy: Policy, problem: Problem, round: int, available: BoolArray, delay_s: np.ndarray, scale: np.ndarray
) -> Context:
    """Return a context that holds only what the policy requires."""
    needs = policy.requires
    cells = (np.arange(_CELLS) + 0.5) * problem.deadline_s / _CELLS
    cdf = 1.0 - np.exp(-cells / scale[..., None])
    truth = DelayDistributions(cdf, 1.0 - np.exp(-problem.deadline_s / scale), 0.0)
    return Context(
        round=round,
        available=available,
        channel_state=delay_s if "channel_state" in needs else None,
        distributions=truth if "distributions" in needs else None,
        problem=problem,
    )


def _feedback(problem: Problem, round: int, assignment: IntArray, delay_s: np.ndarray) -> Feedback:
    total = np.take_along_axis(delay_s, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
    third = np.where(assignment >= 0, total, np.nan) / 3
    punctual = (assignment >= 0) & (total <= problem.deadline_s)
    delays = Delays(third, third.copy(), third.copy())
    return Feedback(round, assignment, delays, punctual, problem).observed()


def _check_state(state: State, replicas: int, where: str) -> None:
    for key, array in state.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise PolicyError(f"{where}: state['{key}'] must be a plain array, got {type(array).__name__}")
        if array.ndim == 0 or len(array) != replicas:
            raise PolicyError(
                f"{where}: state['{key}'] must have a leading axis of {replicas} replicas, got {array.shape}"
            )


def _check_restored(policy: Policy, state: State, problem: Problem, where: str) -> None:
    try:
        restored = policy.check_state(state, problem)
    except InputError as error:
        raise PolicyError(f"{where}: check_state refuses a state of the run ({error})") from error
    same = (np.array_equal(restored[key], state[key], equal_nan=state[key].dtype.kind in "fc") for key in state)
    if set(restored) != set(state) or not all(same):
        raise PolicyError(f"{where}: check_state must return the state unchanged")


def _bytes(state: State) -> dict[str, bytes]:
    return {key: np.asarray(array).tobytes() for key, array in state.items()}


def _reloaded(state: State) -> State:
    """Save and load the state, so that nothing outside its arrays survives."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **state)
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as loaded:
        return dict(loaded)
