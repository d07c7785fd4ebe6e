"""Networks that replay measured rates: a delay is two transfers over the client's trace, and computing between them."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from fedlane.network.compute import ComputeTimes
from fedlane.network.interface import Network
from fedlane.network.trace_links import TraceReplay
from fedlane.network.traces import RateTrace
from fedlane.records import Delays, FloatArray, IntArray
from fedlane.rng import generator, hashed_uniform, keys

_INSTANTS = 256
"""Instants that are sampled together for the true distributions."""


class TraceNetwork(Network):
    """Links that replay measured traces, see `TraceReplay`.

    Args:
        seeds: R seeds, one per replica.
        sizes: Number of clients and of channels.
        traces: The traces.
        uplink_share: Factor of a downlink that serves as uplink.
        payload_bits: Size of a transmitted model in bits.
        compute: Duration of local training.
        deadline_s: The deadline of a round in seconds.

    Attributes:
        replay: The traces of all clients.
    """

    max_samples: ClassVar[int] = 2000

    def __init__(
        self,
        seeds: Sequence[int],
        sizes: tuple[int, int],
        traces: Sequence[RateTrace],
        uplink_share: float,
        payload_bits: float,
        compute: ComputeTimes,
        deadline_s: float,
    ) -> None:
        super().__init__(seeds, *sizes, compute, deadline_s)
        self._traces, self._uplink_share, self._payload_bits = tuple(traces), uplink_share, payload_bits
        self.replay = TraceReplay(seeds, *sizes, traces, uplink_share)
        self._frequency_key = keys(seeds, "trace-compute")[:, None]

    @property
    def stationary(self) -> bool:
        """False: the rates change with time."""
        return False

    @property
    def remark(self) -> str | None:
        """Say which uplinks were not measured."""
        unmeasured = int((~self.replay.has_uplink).sum())
        if not unmeasured:
            return None
        return (
            f"{unmeasured} of {len(self.replay.has_uplink)} recordings have no uplink: their downlinks serve as "
            f"uplinks, at another time, times {self._uplink_share:g}"
        )

    def delays(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Delays:
        """Return the delays of a round, see `Network.delays`."""
        compute_s = self.compute.time_s(hashed_uniform(self._frequency_key, round, np.arange(self.clients)))
        parts = self._parts(self.replay, clock_s, assignment, compute_s)
        return Delays(*(np.where(assignment >= 0, part, np.nan) for part in parts))

    def _parts(
        self, replay: TraceReplay, clock_s: FloatArray, channel: IntArray, compute_s: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return download, compute and upload times (R, U) of rounds that begin at clocks (R,)."""
        download_s = replay.download_s(clock_s, self._payload_bits, channel)
        ready_s = clock_s[:, None] + download_s + compute_s
        return download_s, compute_s, replay.upload_s(ready_s, self._payload_bits, channel)

    def _sampled(self, replica: int, purpose: str, samples: int) -> Iterator[FloatArray]:
        """Yield one replica's total delays at independent instants of its traces, in pieces (B, U, N)."""
        rng = generator(self.seeds[replica], purpose)
        piece = min(_INSTANTS, max(1, 2**18 // (self.clients * self.channels)))
        seeds, sizes = [self.seeds[replica]] * piece, (self.clients, self.channels)
        copies = TraceReplay(seeds, *sizes, self._traces, self._uplink_share)
        longest_s = max(trace.duration_s for trace in self._traces)
        for start in range(0, samples, piece):
            clock_s = 1e3 * longest_s * rng.random(piece)  # many laps, so that offsets of different traces mix
            compute_s = self.compute.time_s(rng.random((piece, self.clients)), replica)
            total_s = [
                sum(self._parts(copies, clock_s, np.full(compute_s.shape, j), compute_s)) for j in range(self.channels)
            ]
            yield np.stack(total_s, axis=-1)[: samples - start]
