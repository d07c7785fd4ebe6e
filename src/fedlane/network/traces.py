"""Measured rates over time, and when a transfer over them ends.

A trace is a piecewise-constant rate that repeats after its last interval. With prefix sums of its bits, the end of a
transfer is found by bisection, in time logarithmic in the length of the trace and whatever the payload.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError, printable

DIRECTIONS = ("down", "up")
MAX_RATE_BPS, MAX_TIME_S = 1e13, 1e10
"""Largest rate and time of a trace."""
_ROUNDING = 1e-14
"""Share of the bits sent since the beginning of a trace that rounding may add."""


@dataclass(frozen=True)
class RateTrace:
    """The measured rate of one link in one direction.

    Attributes:
        name: Name of the trace; the uplink and downlink of one recording have the same name.
        direction: "down" or "up".
        edges_s: (K + 1,) limits of the intervals in seconds, increasing.
        rates_bps: (K,) rate in each interval in bits per second; 0 where nothing is sent.

    Raises:
        InputError: Not a usable trace: the line says why.

    Examples:
        >>> RateTrace("walk", "down", np.array([0.0, 1.0, 3.0]), np.array([2e6, 5e5])).mean_bps
        1000000.0
    """

    name: str
    direction: str
    edges_s: FloatArray
    rates_bps: FloatArray

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise self._error(f"its direction must be down or up, got '{self.direction}'")
        if len(self.rates_bps) < 2:
            raise self._error("it needs at least two rows")
        if not (np.abs(self.edges_s) <= MAX_TIME_S).all():
            raise self._error(f"its times must be finite and at most {MAX_TIME_S:g} s")
        if np.any(np.diff(self.edges_s) <= 0):
            row = int(np.argmax(np.diff(self.edges_s) <= 0)) + 1
            raise self._error(
                f"its times must increase, but {self.edges_s[row]:g} s follows {self.edges_s[row - 1]:g} s"
            )
        allowed = (self.rates_bps >= 0) & (self.rates_bps <= MAX_RATE_BPS)
        if not allowed.all():
            rate_bps = self.rates_bps[np.argmin(allowed)]
            raise self._error(
                f"its rates must be between 0 and {MAX_RATE_BPS / 1e6:g} Mbit/s, got {rate_bps / 1e6:g} Mbit/s"
            )
        if not self.rates_bps.any():
            raise self._error("all its rates are 0, so that no transfer would ever end")

    def _error(self, reason: str) -> InputError:
        return InputError(f"cannot use the trace {printable(self.name)}: {reason}")

    @property
    def duration_s(self) -> float:
        """Time after which the trace repeats, in seconds."""
        return float(self.edges_s[-1] - self.edges_s[0])

    @property
    def mean_bps(self) -> float:
        """Average rate in bits per second."""
        return float(np.sum(np.diff(self.edges_s) * self.rates_bps)) / self.duration_s


class RateTraces:
    """L traces of any lengths, looked up for many clients at once.

    Args:
        traces: The traces; time 0 of the lookups is the first edge of each.

    Attributes:
        traces: The traces.
        duration_s: (L,) time after which each trace repeats, in seconds.

    Examples:
        >>> traces = RateTraces([RateTrace("walk", "down", np.array([0.0, 1.0, 3.0]), np.array([2e6, 5e5]))])
        >>> traces.transfer_s(trace=np.array([0]), start_s=np.array([0.5]), bits=1.5e6)  # 0.5 s, then 1 s
        array([1.5])
    """

    def __init__(self, traces: Sequence[RateTrace]) -> None:
        if not traces:
            raise InputError("a network of traces needs at least one trace")
        self.traces = tuple(traces)
        self._edges_s = np.concatenate([trace.edges_s - trace.edges_s[0] for trace in traces])
        bits = [np.cumsum(np.diff(trace.edges_s) * trace.rates_bps) for trace in traces]
        self._bits = np.concatenate([np.concatenate([[0.0], part]) for part in bits])
        self._rates_bps = np.concatenate([np.concatenate([trace.rates_bps, [0.0]]) for trace in traces])
        self._count = np.array([len(trace.edges_s) for trace in traces])
        self._first = np.concatenate([[0], np.cumsum(self._count)[:-1]])
        last = self._first + self._count - 1
        self.duration_s: FloatArray = self._edges_s[last]
        self._total_bits = self._bits[last]

    def rate_bps(self, trace: IntArray, time_s: FloatArray) -> FloatArray:
        """Return the rate at an instant, in bits per second.

        Args:
            trace: Index of the trace, any shape.
            time_s: Seconds from the beginning of the trace, broadcast with ``trace``; may exceed its duration.
        """
        return self._rates_bps[self._interval(trace, time_s % self.duration_s[trace])]

    def transfer_s(self, trace: IntArray, start_s: FloatArray, bits: ArrayLike) -> FloatArray:
        """Return the duration of transfers: the first time after which the integral of the rate reaches the payload.

        Args:
            trace: Index of the trace, any shape.
            start_s: Start in seconds from the beginning of the trace, broadcast with ``trace``; may exceed its
                duration.
            bits: Payload in bits, broadcast with the others, at least 0.

        Returns:
            Seconds, in the common shape.
        """
        trace, start_s, payload = np.broadcast_arrays(trace, start_s, np.asarray(bits, np.float64))
        phase_s = start_s % self.duration_s[trace]
        interval = self._interval(trace, phase_s)
        sent = self._bits[interval] + self._rates_bps[interval] * (phase_s - self._edges_s[interval])
        target, total = sent + payload, self._total_bits[trace]
        # A rounding error must not carry a transfer that ends where silence begins to the end of the silence.
        laps = np.maximum(np.ceil(target / total * (1.0 - _ROUNDING)) - 1.0, 0.0)
        rest = np.minimum(target - laps * total, total)
        reached = self._bisected(self._bits, trace, rest - _ROUNDING * target, right=False)
        final = self._first[trace] + np.maximum(reached, 1) - 1  # the transfer's last interval, whose rate is not 0
        with np.errstate(divide="ignore", invalid="ignore"):  # a payload of 0 bits before the first bit
            end_s = self._edges_s[final] + (rest - self._bits[final]) / self._rates_bps[final]
        end_s = np.minimum(end_s, self._edges_s[final + 1])
        lasted_s = np.maximum(laps * self.duration_s[trace] + (end_s - phase_s), 0.0)
        return np.where(payload > 0, lasted_s, 0.0)

    def _interval(self, trace: IntArray, phase_s: FloatArray) -> IntArray:
        """Return the position of the interval that contains a phase in [0, duration)."""
        return self._first[trace] + self._bisected(self._edges_s, trace, phase_s, right=True) - 1

    def _bisected(self, values: FloatArray, trace: IntArray, target: FloatArray, *, right: bool) -> IntArray:
        return count_below(values, self._first[trace], self._count[trace], target, right=right)


def count_below(values: FloatArray, first: IntArray, count: IntArray, target: FloatArray, *, right: bool) -> IntArray:
    """Return how many of the values of a sorted part of an array are below a target, by bisection.

    Args:
        values: Parts that are each in increasing order, one after the other.
        first: Position of the first value of the part, any shape.
        count: Number of values of the part, at least 1, the same shape.
        target: Targets, the same shape.
        right: Count values equal to the target as well.
    """
    low, high = np.zeros_like(count), count.copy()
    for _ in range(int(count.max(initial=0)).bit_length()):
        middle = (low + high) // 2
        value = values[first + np.minimum(middle, count - 1)]
        below = (value <= target if right else value < target) & (low < high)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low
