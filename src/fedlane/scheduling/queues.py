"""Virtual queues: how far each client is behind its quota (Section IV-B of the paper)."""

import numpy as np

from fedlane.records import BoolArray, FloatArray


def updated_queues(
    queue: FloatArray, quota: FloatArray, punctual: BoolArray, present: BoolArray | None = None
) -> FloatArray:
    """Return Q_i(t) = [Q_i(t-1) + beta_i x present_i(t-1) - 1_i(t-1)]^+: only a client that is there is owed a turn.

    Args:
        queue: The previous queues (R, U).
        quota: The quotas beta_i (R, U).
        punctual: The punctual clients (R, U).
        present: Who was there at the round's start (R, U); None if all were.
    """
    owed = quota if present is None else quota * present
    return np.maximum(queue + owed - punctual, 0.0)
