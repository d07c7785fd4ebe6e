"""The values of a policy's parameters that tuning may try.

A policy states them in its class attribute `ranges`, by the name of the parameter. A parameter without a range keeps
its default when the policy is tuned.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from fedlane.validate import InputError


@dataclass(frozen=True)
class ParameterRange:
    """An interval of numbers.

    Attributes:
        low: Smallest value.
        high: Largest value; included.
        scale: Whether values (`"linear"`) or their logarithms (`"log"`) are spread evenly.
        integer: Whether only whole numbers are allowed.

    Raises:
        InputError: The interval is empty or infinite, a logarithmic one does not begin above 0, or the ends of an
            integer range are not whole numbers.

    Examples:
        >>> from fedlane.scheduling.ranges import ParameterRange
        >>> ParameterRange(1.0, 100.0, "log").high
        100.0
    """

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"a range must have finite ends, the smaller one first, got {self.low} and {self.high}")
        if self.scale not in ("linear", "log"):
            raise InputError(f"the scale of a range must be 'linear' or 'log', got '{self.scale}'")
        if self.scale == "log" and self.low <= 0:
            raise InputError(f"a logarithmic range must begin above 0, got {self.low}")
        if self.integer and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise InputError(f"an integer range must have whole ends, got {self.low} and {self.high}")


@dataclass(frozen=True)
class Choices:
    """A list of values.

    Attributes:
        values: The values, at least one.

    Raises:
        InputError: There is no value.

    Examples:
        >>> from fedlane.scheduling.ranges import Choices
        >>> Choices(("additive", "success")).values
        ('additive', 'success')
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("a list of choices must have at least one value")


Tunable = ParameterRange | Choices
"""What `Policy.ranges` may hold for a parameter."""

TRADE_OFF = ParameterRange(1.0, 1000.0, "log")
"""Range of V, the weight of delays against queues."""
EXPLORATION = ParameterRange(0.003, 1.0, "log")
"""Range of the factor of an optimism bonus."""
QUOTA_SLACK = ParameterRange(0.0, 0.25)
"""Range of the fraction by which a policy lowers its quotas."""
