"""Who is there: clients that come and go, as a Markov chain or as recorded.

The Markov chain stays on for exponential times of mean m_on and off for exponential times of mean m_off. It is the
same as this: marks come as a Poisson process of rate 1 / m_on + 1 / m_off, each says "on" with probability
m_on / (m_on + m_off), else "off", independently of all others, and the state is what the last mark said. The marks of
each interval of time follow from counters, so the state at an instant is found from its interval and a few before it.
The chain is in its steady state at every instant, and it never repeats.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.rng import hashed_uniform, keys
from fedlane.validate import InputError


class Availability(ABC):
    """The presence of all clients of all replicas. Clocks may be asked for in any order."""

    @abstractmethod
    def present(self, clock_s: FloatArray) -> BoolArray:
        """Return whether each client is present, (R, U), at clocks (R,) or (R, U) in seconds."""

    @abstractmethod
    def leaves(self, start_s: FloatArray, end_s: FloatArray) -> BoolArray:
        """Return whether each client is present at the start and leaves in (start, end], (R, U).

        Args:
            start_s: (R,) or (R, U) instants in seconds.
            end_s: (R, U) instants in seconds; NaN stands for the start, and infinity is allowed.
        """


class AlwaysPresent(Availability):
    """Clients that are always present.

    Args:
        replicas: Number of replicas, R.
        clients: Number of clients, U.
    """

    def __init__(self, replicas: int, clients: int) -> None:
        self._shape = (replicas, clients)

    def present(self, clock_s: FloatArray) -> BoolArray:
        """Return True for all clients, (R, U)."""
        return np.ones(self._shape, bool)

    def leaves(self, start_s: FloatArray, end_s: FloatArray) -> BoolArray:
        """Return False for all clients, (R, U)."""
        return np.zeros(self._shape, bool)


class MarkovAvailability(Availability):
    """Clients that come and go independently, each as a Markov chain in its steady state.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        mean_on_s: Mean duration of presence in seconds.
        mean_off_s: Mean duration of absence in seconds.

    Attributes:
        present_share: Long-run share of the time in which a client is present.

    Examples:
        >>> churn = MarkovAvailability([0, 7], clients=10, mean_on_s=900.0, mean_off_s=300.0)
        >>> churn.present_share
        0.75
        >>> churn.present(np.array([0.0, 1e6])).shape
        (2, 10)
    """

    def __init__(self, seeds: Sequence[int], clients: int, mean_on_s: float, mean_off_s: float) -> None:
        for name, mean_s in (("mean_on_s", mean_on_s), ("mean_off_s", mean_off_s)):
            if not 1e-3 <= mean_s <= 1e12:
                raise InputError(f"availability.{name} must be between 0.001 and 1e12, got {mean_s}")
        self._clients = clients
        self._count_key, self._time_key, self._kind_key = (
            keys(seeds, f"availability-{part}") for part in ("count", "time", "kind")
        )
        self.present_share = mean_on_s / (mean_on_s + mean_off_s)
        self._interval_s = _MARKS / (1.0 / mean_on_s + 1.0 / mean_off_s)

    def present(self, clock_s: FloatArray) -> BoolArray:
        """Return whether each client is present, (R, U), at clocks (R,) or (R, U) in seconds."""
        r, i, interval, limit = self._located(clock_s)
        state = np.empty(len(r), bool)
        entry = np.arange(len(r))
        while len(entry):  # until each client's last mark is found; an interval has none with probability exp(-2)
            latest, mark = np.full(len(entry), -1.0), np.zeros(len(entry), np.int64)
            for number, some, when in self._marks(r[entry], i[entry], interval[entry]):
                newer = (when <= limit[entry[some]]) & (when > latest[some])
                latest[some[newer]], mark[some[newer]] = when[newer], number
            known = latest >= 0
            decided = entry[known]
            state[decided] = self._says_on(r[decided], i[decided], interval[decided], mark[known])
            entry = entry[~known]
            interval[entry] -= 1
            limit[entry] = 1.0
        return state.reshape(len(self._count_key), self._clients)

    def leaves(self, start_s: FloatArray, end_s: FloatArray) -> BoolArray:
        """Return whether each client is present at the start and leaves in (start, end], see `Availability.leaves`."""
        present = self.present(start_s).ravel()
        r, i, interval, after = self._located(start_s)
        end_s = np.where(np.isnan(end_s), -np.inf, end_s).ravel()
        last = end_s / self._interval_s
        left = present & np.isposinf(end_s)
        entry = np.flatnonzero(present & ~left & (last > interval + after))
        while len(entry):
            for number, some, when in self._marks(r[entry], i[entry], interval[entry]):
                marked = entry[some]
                inside = marked[(when > after[marked]) & (interval[marked] + when <= last[marked])]
                left[inside] |= ~self._says_on(r[inside], i[inside], interval[inside], np.array(number))
            interval[entry] += 1
            after[entry] = -1.0
            entry = entry[~left[entry] & (interval[entry] <= last[entry])]
        return left.reshape(len(self._count_key), self._clients)

    def _located(self, clock_s: FloatArray) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """Return replica, client, interval and position within the interval, each (R U,)."""
        shape = (len(self._count_key), self._clients)
        position = np.broadcast_to(clock_s if clock_s.ndim == 2 else clock_s[:, None], shape).ravel() / self._interval_s
        interval = np.floor(position)
        r, i = np.divmod(np.arange(position.size), self._clients)
        return r, i, interval.astype(np.int64), position - interval

    def _marks(self, r: IntArray, i: IntArray, interval: IntArray) -> Iterator[tuple[int, IntArray, FloatArray]]:
        """Yield the first, second, ... marks of one interval per entry: number, entries, and positions in (0, 1)."""
        count = np.searchsorted(_POISSON, hashed_uniform(self._count_key[r], i, interval), side="right")
        for number in range(int(count.max(initial=0))):
            some = np.flatnonzero(count > number)
            yield number, some, hashed_uniform(self._time_key[r[some]], i[some], interval[some], number)

    def _says_on(self, r: IntArray, i: IntArray, interval: IntArray, number: IntArray) -> BoolArray:
        return hashed_uniform(self._kind_key[r], i, interval, number) < self.present_share


_MARKS = 2.0
"""Mean number of marks in an interval; it decides the speed, not the law."""
_POISSON = np.cumsum(np.exp(-_MARKS) * np.cumprod([1.0, *(_MARKS / np.arange(1, 31))]))
"""P(N <= n) of the number of marks in an interval; 30 is exceeded with probability 1e-20."""
