"""Virtual queues: how far behind its quota each client is (paper, Section IV-B)."""

import numpy as np

from fedlane.records import BoolArray, FloatArray


def updated_queues(queue: FloatArray, quota: FloatArray, punctual: BoolArray) -> FloatArray:
    """Q_i(t) = [Q_i(t-1) + beta_i - 1_i(t-1)]^+; all (R, U)."""
    return np.maximum(queue + quota - punctual, 0.0)
