"""From signal-to-noise ratio to rate: Shannon's formula, attenuated and capped as in 3GPP TR 36.942, Annex A.2."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.records import BoolArray, FloatArray
from fedlane.rng import hashed_uniform, keys

BLOCK_ERROR_PROBABILITY = 0.1
"""Probability that a transport block fails at its first transmission, the target of link adaptation (3GPP TS 38.214,
5.2.2.1). A block that fails is sent again, so the payload's rate is 1 - 0.1 of the link's."""
UPLOAD_FAILURE_PROBABILITY = 0.01
"""Probability that an upload fails altogether: about one in a hundred connections is lost. A modelling choice."""


@dataclass(frozen=True)
class AttenuatedShannon:
    """The rate of adaptive modulation and coding.

    The spectral efficiency is 0 below the smallest ratio, then alpha log2(1 + SINR), and at most the cap.

    Attributes:
        alpha: Share of Shannon's capacity that the link attains.
        sinr_min_db: Smallest usable signal-to-interference-and-noise ratio in dB.
        max_efficiency: Largest spectral efficiency in bit/s/Hz.

    Examples:
        >>> LTE_DOWNLINK.rate_bps(10e6, np.array([0.05, 1.0, 1e6])) / 1e6
        array([ 0.,  6., 44.])
    """

    alpha: float
    sinr_min_db: float
    max_efficiency: float

    def efficiency(self, sinr: FloatArray) -> FloatArray:
        """Return the spectral efficiency in bit/s/Hz for ratios (not in dB) of any shape."""
        shannon = self.alpha * np.log2(1.0 + sinr)
        return np.where(sinr < 10 ** (self.sinr_min_db / 10), 0.0, np.minimum(shannon, self.max_efficiency))

    def rate_bps(self, bandwidth_hz: float, sinr: FloatArray) -> FloatArray:
        """Return the link's rate in bits per second, first transmissions and repetitions together."""
        return bandwidth_hz * self.efficiency(sinr)

    def goodput_bps(self, bandwidth_hz: float, sinr: FloatArray) -> FloatArray:
        """Return the payload's rate in bits per second: the link's, less the blocks that are sent again."""
        return (1.0 - BLOCK_ERROR_PROBABILITY) * self.rate_bps(bandwidth_hz, sinr)


LTE_DOWNLINK = AttenuatedShannon(alpha=0.6, sinr_min_db=-10.0, max_efficiency=4.4)
"""TR 36.942, Table A.2: 64QAM at code rate 4/5 is the cap."""
LTE_UPLINK = AttenuatedShannon(alpha=0.4, sinr_min_db=-10.0, max_efficiency=2.0)
"""TR 36.942, Table A.2: 16QAM at code rate 3/4 is the cap."""


class UploadFailures:
    """Uploads that fail altogether, which follow from (seed, round) alone.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        probability: Probability that an upload fails.
    """

    def __init__(self, seeds: Sequence[int], clients: int, probability: float = UPLOAD_FAILURE_PROBABILITY) -> None:
        self._key, self._client = keys(seeds, "upload-failure")[:, None], np.arange(clients)
        self._probability = probability

    def at(self, round: int) -> BoolArray:
        """Return whether each client's upload would fail in a round, (R, U)."""
        return hashed_uniform(self._key, round, self._client) < self._probability
