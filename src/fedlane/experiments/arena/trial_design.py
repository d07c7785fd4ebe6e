"""The design of tuning: which parameter values are tried for a policy.

Trial 0 is the published default. The others follow the additive recurrence of Roberts (2018): with d parameters and
phi the positive root of x^(d+1) = x + 1, trial k has the coordinates

    u_kj = (1/2 + k phi^-(j+1)) mod 1,   j = 0, ..., d - 1,

which cover the unit cube evenly for every number of trials. Nothing is random, so anybody can check the list.
"""

from collections.abc import Mapping
from typing import Any

from fedlane.scheduling.ranges import Choices, ParameterRange, Tunable
from fedlane.validate import at_least

DIGITS = 4
"""Significant digits of a value."""


def trial_parameters(ranges: Mapping[str, Tunable], trials: int) -> list[dict[str, Any]]:
    """Return the parameters of every trial; those of the first are empty, which stands for the defaults.

    Args:
        ranges: What may be tried, by parameter.
        trials: Number of trials; without ranges there is one.
    """
    at_least("trials", trials, 1)
    if not ranges:
        return [{}]
    steps = _steps(len(ranges))
    rows: list[dict[str, Any]] = [{}]
    for k in range(1, trials):
        shares = [(0.5 + k * step) % 1.0 for step in steps]
        rows.append({name: _value(ranges[name], share) for name, share in zip(ranges, shares, strict=True)})
    return rows


def _steps(dimensions: int) -> list[float]:
    """phi^-1, ..., phi^-d; the root is found by the contraction x <- (1 + x)^(1 / (d + 1))."""
    root = 2.0
    for _ in range(100):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    return [root ** -(j + 1) for j in range(dimensions)]


def _value(allowed: Tunable, share: float) -> Any:
    """Return the value at a share of the way through a range or a list."""
    if isinstance(allowed, Choices):
        return allowed.values[int(share * len(allowed.values))]
    if allowed.integer and allowed.scale == "linear":  # every whole number has the same share
        return int(allowed.low) + int(share * (allowed.high - allowed.low + 1))
    value = _between(allowed, share)
    return round(value) if allowed.integer else float(f"{value:.{DIGITS}g}")


def _between(allowed: ParameterRange, share: float) -> float:
    if allowed.scale == "log":
        return float(allowed.low * (allowed.high / allowed.low) ** share)
    return allowed.low + share * (allowed.high - allowed.low)
