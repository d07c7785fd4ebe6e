"""Checks of a trace that was read from a checkpoint, and of its segments."""

from typing import TYPE_CHECKING

import numpy as np

from fedlane.simulation.trace_shape import Totals
from fedlane.validate import InputError

if TYPE_CHECKING:
    from fedlane.simulation.trace import Trace


def check_trace(trace: "Trace") -> None:
    """Raise `InputError` unless the values of a trace from a file can be those of a run."""
    if trace.client.min(initial=-1) < -1 or trace.client.max(initial=-1) >= trace.queue.shape[2]:
        raise InputError("trace.client names a client that does not exist")
    sorted_clients = np.sort(trace.client, axis=2)
    if np.any((np.diff(sorted_clients, axis=2) == 0) & (sorted_clients[:, :, 1:] >= 0)):
        raise InputError("trace.client gives two channels to one client in the same round")
    if np.any(trace.punctual & (trace.client < 0)):
        raise InputError("trace.punctual is true on a channel without a client")
    for name in ("delay_s", "queue"):
        values = getattr(trace, name)
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise InputError(f"trace.{name} must be finite and at least 0")
    for name in ("download_s", "compute_s", "upload_s"):
        if np.any(getattr(trace, name) < 0):
            raise InputError(f"trace.{name} must be at least 0")
    if np.isinf(trace.accuracy).any():
        raise InputError("trace.accuracy must be finite")
    if trace.max_queue is not None:
        largest = trace.max_queue[:, :: trace.every]
        reachable = np.isfinite(trace.max_queue) & (trace.max_queue >= 0)
        if not np.all(reachable) or not np.array_equal(largest, trace.queue.max(axis=2, initial=0)):
            raise InputError("trace.max_queue does not agree with trace.queue")


def check_segments(trace: "Trace") -> None:
    """Read the segments of a bounded trace, and compare them with the sums that its checkpoint contains.

    Raises:
        InputError: A segment is missing or damaged, or does not agree with the checkpoint.
    """
    if trace.totals is None or trace.served is None or trace.uploads is None:
        return
    in_segments = Totals.zero(*trace.totals.assigned.shape)
    t = 0
    for client, in_time in trace.client_blocks():
        for row in range(client.shape[1]):
            in_segments.add(client[:, row], in_time[:, row])
            kept, between = divmod(t, trace.every)
            agrees = np.array_equal(trace.served[:, t], in_time[:, row].sum(axis=1))
            if not agrees or (not between and not np.array_equal(trace.uploads[:, kept], in_segments.assigned)):
                raise InputError(f"the assignments of round {t} in the segments do not agree with the checkpoint")
            t += 1
    if any(
        not np.array_equal(getattr(trace.totals, name), getattr(in_segments, name)) for name in ("assigned", "punctual")
    ):
        raise InputError("the assignments in the segments do not agree with the checkpoint")
