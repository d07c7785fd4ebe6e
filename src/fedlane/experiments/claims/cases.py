"""Cases: the comparisons over seeds that decide a claim."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy.special import stdtr

from fedlane.intervals import interval
from fedlane.records import FloatArray

ONE_SIDED_LEVEL = 0.025
"""Level of each one-sided test; a 95% interval excludes a value on one side at this level."""


class NotComputedError(Exception):
    """The store does not contain a result that a claim needs."""


@dataclass(frozen=True)
class Case:
    """A comparison with one value per seed.

    It holds if the 95% interval of the mean lies above the bound, and it is refuted if the interval lies wholly on the
    other side.
    """

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

    @property
    def refuted(self) -> bool:
        """Whether the interval lies wholly on the wrong side of the bound."""
        return self.p_refuted < ONE_SIDED_LEVEL

    @property
    def p_holds(self) -> float:
        """One-sided p-value of the hypothesis that the mean is on the wrong side of the bound."""
        return _p_above(self.values, self.bound) if not self.below else _p_below(self.values, self.bound)

    @property
    def p_refuted(self) -> float:
        """One-sided p-value of the hypothesis that the mean is on the claimed side of the bound."""
        return _p_below(self.values, self.bound) if not self.below else _p_above(self.values, self.bound)


def _p_above(values: FloatArray, bound: float) -> float:
    """p-value of Student's test of the hypothesis that the mean is at most the bound."""
    if len(values) < 2:
        raise NotComputedError("an interval needs at least two seeds")
    mean, error = float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5
    if error <= 1e-12 * max(abs(mean), abs(bound), 1e-9):  # the same value on every seed
        return 0.0 if mean > bound else 1.0
    return float(stdtr(len(values) - 1, (bound - mean) / error))


def _p_below(values: FloatArray, bound: float) -> float:
    """p-value of Student's test of the hypothesis that the mean is at least the bound."""
    return _p_above(-values, -bound)


def _p_within(values: FloatArray, bound: float, tolerance: float) -> float:
    """p-value of the two one-sided tests that the mean is within a tolerance of the bound."""
    return max(_p_above(values, bound - tolerance), _p_below(values, bound + tolerance))


@dataclass(frozen=True)
class Within(Case):
    """A case that holds if its interval lies within a tolerance of the bound, and is refuted if it lies outside."""

    tolerance: float = 0.0

    @property
    def margin(self) -> float:
        """Distance from the interval's farther end to the edge of the tolerance; negative if it reaches outside."""
        _, low, high = self.interval
        return self.tolerance - max(high - self.bound, self.bound - low)

    @property
    def p_holds(self) -> float:
        """p-value of the two one-sided tests of equivalence."""
        return _p_within(self.values, self.bound, self.tolerance)

    @property
    def p_refuted(self) -> float:
        """p-value of the test that the mean is within the tolerance."""
        return min(
            _p_below(self.values, self.bound - self.tolerance), _p_above(self.values, self.bound + self.tolerance)
        )


@dataclass(frozen=True)
class Differs(Case):
    """A case that holds if its interval excludes the bound, and is refuted if it lies within a tolerance of it."""

    tolerance: float = 0.0

    @property
    def margin(self) -> float:
        """Distance from the interval to the bound; negative if the interval covers it."""
        _, low, high = self.interval
        return max(low - self.bound, self.bound - high)

    @property
    def p_holds(self) -> float:
        """p-value of the test of equality; its interval excludes the bound if this is below the one-sided level."""
        return min(_p_above(self.values, self.bound), _p_below(self.values, self.bound))

    @property
    def p_refuted(self) -> float:
        """p-value of the two one-sided tests of equivalence."""
        return _p_within(self.values, self.bound, self.tolerance)


@dataclass(frozen=True)
class Finding:
    """The cases of a claim, and how they decide it."""

    cases: Sequence[Case]
    """Cases under the calibrated reading, at every V."""
    literal: Callable[[], Sequence[Case]] | None = None
    """The same cases with the exploration bonus as printed in the paper (reading 11)."""
    free_v: bool = False
    """The paper does not specify V; if not all cases hold, those at V = 100 decide (reading 14)."""
    alternative: tuple[str, Sequence[Case]] | None = None
    """A reading under which the claim may hold, and its cases."""
    any_of: bool = False
    """The claim is that at least one case holds, not all."""
    note: str = ""


def less(name: str, small: FloatArray, large: FloatArray, policy: str = "") -> Case:
    """Case that ``small`` is below ``large``, both (S,): the difference as a share of the mean of ``large``."""
    return Case(name, (large - small) / large.mean(), policy)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method, which bounds the chance of any wrong rejection among them."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def counted(cases: Sequence[Case]) -> str:
    """Return how many of the cases hold, as text."""
    return f"{sum(case.holds for case in cases)} of {len(cases)}"
