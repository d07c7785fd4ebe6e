"""Resizing of a policy's state when clients join or leave.

Clients keep their index: new ones are appended, and a smaller problem drops the last ones. The number of channels stays
the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.records import Problem, State
from fedlane.validate import InputError


def resized(
    init: Callable[[Problem], State],
    state: State,
    old: Problem,
    new: Problem,
    per_client: frozenset[str] | None,
    axis: int,
) -> State:
    """Return a policy's state for the clients of another problem.

    Args:
        init: The policy's `init`.
        state: The state under `old`.
        old: The problem so far.
        new: The problem from now on, with as many channels as before.
        per_client: Names of the arrays whose axis `axis` is the clients; None to infer it from `init`.
        axis: The axis of the clients in those arrays.

    Returns:
        The state: remaining clients keep their entries, new clients have those of ``init(new)``.
    """
    if new.channels != old.channels:
        raise InputError(f"the number of channels cannot change, got {old.channels} and {new.channels}")
    fresh = init(new)
    if per_client is None:
        before = init(old)
        return {key: _inferred(before[key], array, state[key]) for key, array in fresh.items()}
    return {key: with_clients(fresh[key], array, axis) if key in per_client else array for key, array in state.items()}


def with_clients(fresh: NDArray[Any], learned: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return ``fresh`` with the entries of the clients that ``learned`` has; ``axis`` is the clients' axis in both."""
    kept = min(fresh.shape[axis], learned.shape[axis])
    remaining, newcomers = np.split(learned, [kept], axis)[0], np.split(fresh, [kept], axis)[1]
    return np.concatenate([remaining, newcomers], axis)


def _inferred(before: NDArray[Any], fresh: NDArray[Any], learned: NDArray[Any]) -> NDArray[Any]:
    """Resize an undeclared array by comparing its initial values ``before`` and ``fresh``.

    An array whose initial values differ between the two problems is derived from the problem (quotas, for example) and
    is reset. Any other keeps its entries at their index; an axis that `init` shortens is cut.
    """
    if not before.ndim == fresh.ndim == learned.ndim:
        return fresh
    common = _corner(tuple(map(min, before.shape, fresh.shape)))
    if not np.array_equal(before[common], fresh[common]):
        return fresh
    sizes = zip(before.shape, fresh.shape, learned.shape, strict=True)
    result = np.zeros([new if new < old else max(new, size) for old, new, size in sizes], fresh.dtype)
    for array in (fresh, learned):
        overlap = _corner(tuple(map(min, array.shape, result.shape)))
        result[overlap] = array[overlap]
    return result


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)
