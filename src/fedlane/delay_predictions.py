"""Predictions of the delays of assigned uploads, and whether the uploads agree with them.

A prediction is the median and the two ends of a 90% interval. A server does not learn how late a late upload is, so an
end that would lie beyond the deadline is the deadline, and an interval that reaches it has no upper end.
"""

from dataclasses import dataclass

import numpy as np

from fedlane.records import BoolArray, FloatArray, IntArray

COVERAGE = 0.9
"""Share of the uploads that the intervals should contain."""
PROBABILITIES = ((1 - COVERAGE) / 2, 0.5, (1 + COVERAGE) / 2)
"""Probabilities of the lower end, the median and the upper end."""
NAMES = ("predicted_low_s", "predicted_median_s", "predicted_high_s")
"""Columns of the lower ends, the medians and the upper ends in the table ``assignments``."""


@dataclass(frozen=True)
class PredictedDelays:
    """What a policy expects of the uploads that it has just assigned; NaN for unassigned clients.

    Attributes:
        low_s: Lower end of the 90% interval of each delay, in seconds (R, U).
        median_s: Median of each delay, in seconds; the deadline if the upload will rather be late (R, U).
        high_s: Upper end; the deadline if the delay may as well be longer (R, U).

    Examples:
        >>> predicted = PredictedDelays(np.array([[0.5]]), np.array([[1.0]]), np.array([[2.0]]))
        >>> list(predicted.arrays())
        ['predicted_low_s', 'predicted_median_s', 'predicted_high_s']
    """

    low_s: FloatArray
    median_s: FloatArray
    high_s: FloatArray

    def arrays(self) -> dict[str, FloatArray]:
        """The three arrays by the names of their columns."""
        return dict(zip(NAMES, (self.low_s, self.median_s, self.high_s), strict=True))

    def problem(self, assignment: IntArray) -> str:
        """Return why these cannot be predictions for an assignment (R, U); empty if they can."""
        arrays = self.arrays().values()
        if any(np.shape(array) != assignment.shape for array in arrays):
            return f"predictions must have shape {assignment.shape}, got {[np.shape(array) for array in arrays]}"
        low, median, high = (array[assignment >= 0] for array in arrays)
        if not ordered(low, median, high).all():
            return "predictions must be finite, at least 0, and in the order low_s, median_s, high_s"
        return ""


def ordered(low_s: FloatArray, median_s: FloatArray, high_s: FloatArray) -> BoolArray:
    """Whether each prediction is finite, at least 0 and in order."""
    return (low_s >= 0) & (low_s <= median_s) & (median_s <= high_s) & (high_s < np.inf)


def ordered_or_none(low_s: FloatArray, median_s: FloatArray, high_s: FloatArray) -> BoolArray:
    """Whether each upload has a prediction that is in order, or none at all, as in a round that a crash cut off."""
    none = np.isnan(low_s) & np.isnan(median_s) & np.isnan(high_s)
    return none | ordered(low_s, median_s, high_s)


def covered(
    low_s: FloatArray, high_s: FloatArray, delay_s: FloatArray, punctual: BoolArray, deadline_s: float
) -> BoolArray:
    """Whether each upload lies in its interval: a late one does if the upper end reaches the deadline.

    Args:
        low_s: Lower ends; NaN where there is no upload or no prediction, which is never covered.
        high_s: Upper ends.
        delay_s: What the uploads took.
        punctual: Whether they met the deadline.
        deadline_s: The deadline in seconds.
    """
    reaches = high_s >= np.float32(deadline_s)  # ends are stored as float32
    return np.where(punctual, (delay_s >= low_s) & (reaches | (delay_s <= high_s)), reaches)
