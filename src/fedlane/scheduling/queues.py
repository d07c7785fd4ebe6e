"""Virtual queues: how far each client is behind its quota (Section IV-B of the paper)."""

import numpy as np

from fedlane.records import BoolArray, FloatArray


def updated_queues(queue: FloatArray, quota: FloatArray, punctual: BoolArray) -> FloatArray:
    """Return Q_i(t) = [Q_i(t-1) + beta_i - 1_i(t-1)]^+ from the previous queues, the quotas and the punctual clients.

    All arrays are (R, U).
    """
    return np.maximum(queue + quota - punctual, 0.0)
