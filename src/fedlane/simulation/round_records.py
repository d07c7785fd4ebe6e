"""The record of a round just played, for trackers and displays."""

import numpy as np

from fedlane.records import FloatArray, IntArray, MechanismSpec, RoundDetail, RoundRecord
from fedlane.simulation.spending import PrivacySpending
from fedlane.simulation.trace import Trace


def round_record(
    trace: Trace,
    queue: FloatArray,
    clock_s: FloatArray,
    uploads: IntArray,
    mechanism: MechanismSpec,
    spending: PrivacySpending | None,
) -> RoundRecord:
    """Return the record of the last round of a trace.

    Args:
        trace: The trace; before the first round, the record shows an unset row.
        queue: (R, U): the clients' queues after the round.
        clock_s: (R,): simulated time after the round.
        uploads: (R, U): uploads charged so far.
        mechanism: The mechanism.
        spending: Accounting of the uploads; None without a mechanism.
    """
    t = trace.rounds - 1
    row = t - trace.first
    queue = queue.astype(np.float32)
    has_accuracy = not np.isnan(trace.accuracy[:, t]).any()
    evaluated = has_accuracy or not np.isnan(trace.loss[:, t]).any()  # numbers have a loss but no accuracy
    return RoundRecord(
        round=t,
        delay_s=trace.delay_s[:, t].copy(),
        clock_s=clock_s,
        punctual=trace.punctual[:, row].sum(axis=1),
        max_queue=queue.max(axis=1).astype(np.float64),
        accuracy=trace.accuracy[:, t].copy() if has_accuracy else None,
        loss=trace.loss[:, t].copy() if evaluated else None,
        epsilon=None if spending is None else spending.epsilon(uploads).max(axis=1),
        detail=RoundDetail(
            client=trace.client[:, row],
            download_s=trace.download_s[:, row],
            compute_s=trace.compute_s[:, row],
            upload_s=trace.upload_s[:, row],
            queue=queue,
            uploads_left=mechanism.max_uploads - uploads,
            delay_history_s=trace.delay_s[:, : t + 1],
            accuracy_history=trace.accuracy[:, : t + 1],
            loss_history=trace.loss[:, : t + 1],
            epsilon_shown=None if spending is None else spending.epsilon_shown(uploads).max(axis=1),
        ),
    )
