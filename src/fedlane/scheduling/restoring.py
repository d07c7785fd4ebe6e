"""Checks of a policy's state that was read from a file.

Compiled code uses some entries of a state as indices and does not check them, so that a forged checkpoint could read
and write memory outside the arrays. `Policy.check_state` therefore checks every state before it is used.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import fitting_array
from fedlane.records import State
from fedlane.validate import InputError


def fitting_state(initial: State, state: State) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``initial`` names, each of which must have its shape and a type that fits it.

    Args:
        initial: The state before the first round, as `init` returns it.
        state: The state from a file; arrays that ``initial`` does not name are left out.

    Raises:
        InputError: An array is missing, or has a different shape or type.
    """
    missing = [name for name in initial if name not in state]
    if missing:
        raise InputError(f"state.{missing[0]} is missing")
    named = {f"state.{name}": array for name, array in state.items()}
    return {name: fitting_array(named, f"state.{name}", first) for name, first in initial.items()}


def check_within(name: str, array: NDArray[Any], low: NDArray[Any] | float, high: NDArray[Any] | float) -> None:
    """Raise `InputError` unless every entry of ``state[name]`` lies in [low, high], which NaN does not."""
    wrong = ~((array >= low) & (array <= high))
    if wrong.any():
        bound_low, bound_high = (np.broadcast_to(bound, array.shape)[wrong][0] for bound in (low, high))
        raise InputError(f"state.{name} must lie in {bound_low:g}..{bound_high:g}, got {array[wrong][0]:g}")
