"""Cases: the comparisons over seeds that decide a claim."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedlane.intervals import interval
from fedlane.records import FloatArray


class NotComputedError(Exception):
    """The store does not contain a result that a claim needs."""


@dataclass(frozen=True)
class Case:
    """A comparison with one value per seed. It holds if the 95% interval of the mean lies above the bound."""

    label: str
    values: FloatArray
    """(S,): one value per seed; differences are paired by seed."""
    policy: str = ""
    """The paper's policy that the case is about, if the verdict depends on it."""
    bound: float = 0.0
    below: bool = False
    """Require the interval to lie below the bound instead."""

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """Mean, lower end and upper end of the 95% Student interval over seeds."""
        measure = interval(self.values)
        mean, low, high = measure["mean"], measure["low"], measure["high"]
        if mean is None or low is None or high is None:
            raise NotComputedError("an interval needs at least two seeds")
        return mean, low, high

    @property
    def margin(self) -> float:
        """Distance from the interval to the bound; positive if the case holds."""
        _, low, high = self.interval
        return self.bound - high if self.below else low - self.bound

    @property
    def holds(self) -> bool:
        """Whether the margin is positive."""
        return self.margin > 0


@dataclass(frozen=True)
class Covers(Case):
    """A case that holds if its interval covers the bound."""

    @property
    def margin(self) -> float:
        """Distance from the bound to the nearer end of the interval; negative if the bound lies outside."""
        _, low, high = self.interval
        return min(high - self.bound, self.bound - low)


@dataclass(frozen=True)
class Excludes(Case):
    """A case that holds if its interval does not cover the bound."""

    @property
    def margin(self) -> float:
        """Distance from the interval to the bound; negative if the interval covers it."""
        _, low, high = self.interval
        return max(low - self.bound, self.bound - high)


@dataclass(frozen=True)
class Finding:
    """The cases of a claim, and how they decide it."""

    cases: Sequence[Case]
    """Cases under the calibrated reading, at every V."""
    literal: Callable[[], Sequence[Case]] | None = None
    """The same cases with the exploration bonus as printed in the paper (reading 11)."""
    free_v: bool = False
    """The paper does not specify V; if not all cases hold, those at V = 100 decide (reading 14)."""
    alternative: tuple[int, Sequence[Case]] | None = None
    """A reading under which the claim may hold, and its cases."""
    note: str = ""


def less(name: str, small: FloatArray, large: FloatArray, policy: str = "") -> Case:
    """Case that ``small`` is below ``large``, both (S,): the difference as a share of the mean of ``large``."""
    return Case(name, (large - small) / large.mean(), policy)


def counted(cases: Sequence[Case]) -> str:
    """Return how many of the cases hold, as text."""
    return f"{sum(case.holds for case in cases)} of {len(cases)}"
