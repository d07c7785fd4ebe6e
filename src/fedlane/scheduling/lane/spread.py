"""The variance of a pair's log network time from round to round.

A pair's variance cannot be estimated from few samples, but slow pairs vary more than fast ones in the same way. The log
of the sample variance is regressed on the mean, with weights (n - 1) / 2, the inverse of its variance under normality:

    ln s_ij^2 = a + b (m_ij - m) + error,

with the prior that a is ln `PRIOR_SPREAD` (weight `LEVEL_WEIGHT`) and b is 0 (weight `SLOPE_WEIGHT`). A pair's variance
is then shrunk towards the line, which counts as `LINE_FREEDOM` degrees of freedom.
"""

from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray, State

PRIOR_SPREAD = 0.16
LEVEL_WEIGHT = 2.0
SLOPE_WEIGHT = 4.0
LINE_FREEDOM = 8.0
LINE = ("line_level", "line_slope", "line_centre")
"""Names of the line's arrays in the policy's state."""


@dataclass(frozen=True)
class SpreadLine:
    """The regression line of each replica; every array is (R,).

    Attributes:
        level: Log variance at the centre.
        slope: Change of the log variance per unit of the mean.
        centre: Weighted mean of the pairs' means.
    """

    level: FloatArray
    slope: FloatArray
    centre: FloatArray

    @classmethod
    def stored(cls, state: State) -> "SpreadLine":
        """Return the line stored in a policy's state, which was fitted after the latest round."""
        return cls(*(state[name] for name in LINE))

    def arrays(self) -> dict[str, FloatArray]:
        """Return the line as arrays of a policy's state."""
        return dict(zip(LINE, (self.level, self.slope, self.centre), strict=True))

    def variance(self, mean: FloatArray, replica: np.ndarray | slice = slice(None)) -> FloatArray:
        """Return the line's variance at ``mean`` (R, ...), or (P,) with the replica of each entry."""
        shape = (-1,) + (1,) * (mean.ndim - 1)
        level, slope, centre = (line[replica].reshape(shape) for line in (self.level, self.slope, self.centre))
        result: FloatArray = np.exp(np.clip(level + slope * (mean - centre), -8.0, 2.0))
        return result


def fit_line(state: State) -> SpreadLine:
    """Regress the log sample variances of the pairs on their means."""
    replicas = len(state["information"])
    count, x, variance = (state[name].reshape(replicas, -1) for name in ("information", "mean", "variance"))
    freedom = np.where(count >= 2.5, count - 1.0, 0.0).astype(np.float64)
    divisor = np.maximum(freedom, 1.0)
    weight = freedom / 2
    # E ln(sample variance) = ln(variance) - 1 / (n - 1), nearly
    y = np.where(freedom > 0, np.log(np.maximum(variance * count / divisor, 1e-6)) + 1.0 / divisor, 0.0)
    total = weight.sum(axis=1)
    centre = (weight * x).sum(axis=1) / np.maximum(total, 1e-9)
    level = ((weight * y).sum(axis=1) + LEVEL_WEIGHT * np.log(PRIOR_SPREAD)) / (total + LEVEL_WEIGHT)
    dx = x - centre[:, None]
    products = (weight * dx * (y - level[:, None])).sum(axis=1)
    return SpreadLine(level, products / ((weight * dx * dx).sum(axis=1) + SLOPE_WEIGHT), centre)


def shrunk(line_variance: FloatArray, count: FloatArray, variance: FloatArray) -> FloatArray:
    """Return each pair's variance: its own, shrunk towards the line's."""
    squares = np.where(count > 1, count * variance, 0.0)
    result: FloatArray = (LINE_FREEDOM * line_variance + squares) / (LINE_FREEDOM + np.maximum(count - 1.0, 0.0))
    return result
