"""How large an update may be: bounds from the norms of the clients' updates, with one vote for each client.

A client's vote is the norm of its last update, in total and for each array, so that a large change of one small array
is not hidden in the total. The bound is 10 times the median vote, the present round's votes included. Fewer than half
of the voters cannot move the median beyond the votes of the others, whatever norms they send.

- A vote is at most the bound of the round before. The bound therefore follows when most updates grow, but slowly.
- An array that a client did not change has no vote: clients that train a part of the model do not shut out the others.
- A small array may always have 10 times its share of the median total norm.
- The bound exceeds `starting_bound` only as far as it would if every client that has not voted yet had voted for 0.
  Colluding clients that vote before the others therefore cannot raise it. With fewer than 3 votes, if there are more
  clients than that, no majority can be formed and only `starting_bound` applies.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.flower.protocol import LARGEST
from fedlane.flower.server.metrics import lower_median

FACTOR, MIN_VOTES = 10.0, 3
ROUNDING = 1.0 + 1e-9

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class UpdateNorms:
    """The norms of one client's update."""

    client: str
    total: float
    """Norm over all floating-point arrays. Counters are left out, because they would hide the rest."""
    arrays: Mapping[str, float]


class UpdateBounds:
    """The clients' votes, and the bounds that follow from them."""

    def __init__(self, max_update_norm: float | None = None) -> None:
        """``max_update_norm`` replaces all bounds by one on the total norm."""
        self.max_update_norm = max_update_norm
        self.totals: dict[str, float] = {}
        """The vote of each client on the total norm."""
        self.arrays: dict[str, dict[str, float]] = {}
        """The votes of each client on the arrays' norms."""

    def judge(self, updates: Sequence[UpdateNorms], model: Arrays, clients: int) -> list[str]:
        """Let the updates of a round vote, and return for each why it is too large; empty if it is not.

        Args:
            updates: The updates, at most one per client.
            model: The model that was sent.
            clients: Number of clients that may vote in this or a later round.
        """
        limits = self.limits(model, clients)
        for update in updates:
            if update.total > 0:
                self.totals[update.client] = min(update.total, limits.total)
            votes = self.arrays.setdefault(update.client, {})
            votes.update({name: min(norm, limits.arrays[name]) for name, norm in update.arrays.items() if norm > 0})
        limits = self.limits(model, clients)
        return [_reason(update, limits) for update in updates]

    def limits(self, model: Arrays, clients: int) -> UpdateNorms:
        """Return the bounds as they follow from the votes so far."""
        if self.max_update_norm is not None:
            return UpdateNorms("", self.max_update_norm, dict.fromkeys(model, math.inf))
        floats = float_arrays(model)
        start = math.hypot(*(starting_bound(array) for array in floats.values()))
        typical = _Median.of(list(self.totals.values()), clients)
        size = sum(array.size for array in floats.values())
        arrays = {}
        for name, array in model.items():
            votes = [norms[name] for norms in self.arrays.values() if name in norms]
            share = math.sqrt(array.size / size) if name in floats else 0.0
            median = _Median.of(votes, clients)
            arrays[name] = median.at_least(typical, share).limit(starting_bound(array))
        return UpdateNorms("", typical.limit(start), arrays)

    def values(self) -> dict[str, Any]:
        """Return the votes as plain values, for a checkpoint."""
        return {"norms": self.totals, "array_norms": self.arrays}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore the votes; a checkpoint of an earlier version has none on arrays."""
        self.totals = finite(values["norms"])
        self.arrays = {client: finite(norms) for client, norms in values.get("array_norms", {}).items()}


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a checkpoint by name; raise `ValueError` for anything but finite numbers from 0."""
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} has the invalid value {value!r}")
    return {name: float(value) for name, value in values.items()}


def starting_bound(array: NDArray[Any]) -> float:
    """Return the largest change of an array that needs no vote: its norm, plus 1 for each weight (root mean square).

    Few steps of training from any usual initial weights change them less. A counter has no natural scale.
    """
    if not np.issubdtype(array.dtype, np.floating):
        return LARGEST
    return norm([array]) + math.sqrt(array.size)


def float_arrays(model: Arrays) -> dict[str, NDArray[Any]]:
    """Return the floating-point arrays of a model, which are its weights; the others are counters."""
    return {name: array for name, array in model.items() if np.issubdtype(array.dtype, np.floating)}


def norm(arrays: Iterable[NDArray[Any]]) -> float:
    """Return the L2 norm over some arrays; infinity if it overflows."""
    with np.errstate(over="ignore"):
        flat = (np.asarray(array, np.float64).ravel() for array in arrays)
        return math.sqrt(sum(float(values @ values) for values in flat))


@dataclass(frozen=True)
class _Median:
    """The median of some votes, over the voters and over all clients."""

    of_voters: float
    of_all: float
    """The lower median if everybody who has not voted had voted for 0."""
    enough: bool
    """Whether there are enough votes for a median."""

    @classmethod
    def of(cls, votes: Sequence[float], clients: int) -> "_Median":
        enough = len(votes) >= max(1, min(MIN_VOTES, clients))
        missing = [0.0] * max(clients - len(votes), 0)
        return cls(float(np.median(votes)) if votes else 0.0, lower_median([*votes, *missing]), enough)

    def at_least(self, other: "_Median", share: float) -> "_Median":
        """Return this median, or a share of another one where that is larger."""
        voters = max(self.of_voters, share * other.of_voters)
        return _Median(voters, max(self.of_all, share * other.of_all), self.enough)

    def limit(self, start: float) -> float:
        """Return the bound that follows; ``start`` is the starting bound."""
        return min(FACTOR * self.of_voters, max(start, FACTOR * self.of_all)) if self.enough else start


def _reason(update: UpdateNorms, limits: UpdateNorms) -> str:
    for name, length in update.arrays.items():
        if not length <= limits.arrays[name] * ROUNDING:
            return f"the update's norm in array {name!r}, {length:.4g}, is above {limits.arrays[name]:.4g}"
    if not update.total <= limits.total * ROUNDING:
        return f"the update's norm {update.total:.4g} is above {limits.total:.4g}"
    return ""
