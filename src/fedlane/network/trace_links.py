"""Links that replay measured traces: each client has a trace, and its channels differ by constant factors."""

from collections.abc import Sequence

import numpy as np

from fedlane.network.traces import RateTrace, RateTraces
from fedlane.records import FloatArray, IntArray
from fedlane.rng import dealt, hashed_uniform, keys
from fedlane.validate import InputError, positive

CHANNEL_FACTORS = (0.5, 1.0)
"""Range of the factor of each pair, drawn uniformly: a channel carries at most the measured rate, at least half."""


class TraceReplay:
    """The transfers of all replicas over measured traces.

    Each seed gives its clients recordings in random order, a different one to each while there are enough, and each
    client a uniform offset into its recording. The uplink of a recording is replayed at the downlink's offset, because
    both were measured together. A recording without an uplink serves as the uplink, too: at an independent offset,
    times ``uplink_share``.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        channels: Number of channels, N.
        traces: The traces; an uplink and a downlink of the same name are one recording.
        uplink_share: Factor of a downlink that serves as uplink.
        factors: Range of the factors of the pairs.

    Attributes:
        recordings: Names of the L recordings that have a downlink.
        recording: (R, U) recording of each client.
        factor: (R, U, N) factor of each pair.
        has_uplink: (L,) whether the uplink was measured.

    Raises:
        InputError: No trace has the direction down, a name is repeated, or the share is not positive.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        clients: int,
        channels: int,
        traces: Sequence[RateTrace],
        uplink_share: float = 1.0,
        factors: tuple[float, float] = CHANNEL_FACTORS,
    ) -> None:
        positive("network.uplink_share", uplink_share)
        down, up = _by_name(traces, "down"), _by_name(traces, "up")
        if not down:
            raise InputError("network.trace must contain a downlink: all its traces are uplinks")
        self.recordings = tuple(down)
        self.has_uplink = np.array([name in up for name in self.recordings])
        self._down = RateTraces(list(down.values()))
        self._up = RateTraces([up.get(name, trace) for name, trace in down.items()])
        self._uplink_share = np.where(self.has_uplink, 1.0, uplink_share)
        self.recording: IntArray = np.stack([dealt(seed, "trace-recording", clients, len(down)) for seed in seeds])
        client = np.arange(clients)
        share = hashed_uniform(keys(seeds, "trace-factor")[:, None, None], client[:, None], np.arange(channels))
        self.factor: FloatArray = factors[0] + (factors[1] - factors[0]) * share
        offset, other = (
            hashed_uniform(keys(seeds, purpose)[:, None], client) for purpose in ("trace-offset", "trace-offset-up")
        )
        self._offset_down_s = offset * self._down.duration_s[self.recording]
        together = self.has_uplink[self.recording]
        self._offset_up_s = np.where(together, self._offset_down_s, other * self._up.duration_s[self.recording])

    def download_s(self, clock_s: FloatArray, bits: float, channel: IntArray | None = None) -> FloatArray:
        """Return the duration of downloads.

        Args:
            clock_s: (R,) or (R, U) instants at which they start, in seconds.
            bits: Payload in bits.
            channel: (R, U) channel of each client (-1 counts as 0); None for all channels.

        Returns:
            Seconds, (R, U), or (R, U, N) for all channels.
        """
        return self._transfer_s(self._down, self._offset_down_s, clock_s, np.full(self.recording.shape, bits), channel)

    def upload_s(self, clock_s: FloatArray, bits: float, channel: IntArray | None = None) -> FloatArray:
        """Return the duration of uploads; the arguments are those of `download_s`."""
        payload = bits / self._uplink_share[self.recording]
        return self._transfer_s(self._up, self._offset_up_s, clock_s, payload, channel)

    def _transfer_s(
        self,
        traces: RateTraces,
        offset_s: FloatArray,
        clock_s: FloatArray,
        bits: FloatArray,
        channel: IntArray | None,
    ) -> FloatArray:
        start_s = offset_s + (clock_s if clock_s.ndim == 2 else clock_s[:, None])
        if channel is None:
            return traces.transfer_s(self.recording[..., None], start_s[..., None], bits[..., None] / self.factor)
        factor = np.take_along_axis(self.factor, np.maximum(channel, 0)[..., None], axis=2)[..., 0]
        return traces.transfer_s(self.recording, start_s, bits / factor)


def _by_name(traces: Sequence[RateTrace], direction: str) -> dict[str, RateTrace]:
    """Return the traces of one direction by their names."""
    chosen = [trace for trace in traces if trace.direction == direction]
    named = {trace.name: trace for trace in chosen}
    if len(named) < len(chosen):
        raise InputError(f"network.trace must have different names for its {direction}links, got one twice")
    return named
