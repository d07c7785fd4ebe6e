"""The radio link of a client on a channel: path loss, interference and rate (paper, Section II-A, (3) and (4)).

Powers are relative to the noise power, so the rate is B log2(1 + snr / (1 + interference)). Readings are numbered
as in docs/reading-the-paper.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray, IntArray
from fedlane.rng import generator


@dataclass(frozen=True)
class Radio:
    """Constants of the radio links.

    Attributes:
        bandwidth_up_hz: Bandwidth of an uplink in Hz.
        bandwidth_down_hz: Bandwidth of a downlink in Hz.
        power_up_dbm: Transmission power of a client in dBm.
        power_down_dbm: Transmission power of an access point in dBm.
        noise_dbm: Noise power in dBm.
        path_loss_db: Path loss at 1 km in dB.
        path_loss_slope_db: Further path loss per decade of distance in dB.
        min_distance_m: Smallest distance in metres that the path loss is computed for.
        rayleigh: Whether links have Rayleigh fading.
        interference_db: Range of every pair's interference scale s_ij in dB, relative to the noise power.
        payload_bits: Size of a transmitted model in bits.

    Examples:
        >>> import numpy as np
        >>> radio = Radio(15e3, 15e3, 23.0, 23.0, -107.0, 128.1, 37.6, 10.0, False, (-5.0, 10.0), 5000.0)
        >>> gain_db = path_gain_db(np.array([0.2744]), radio)
        >>> snr = from_db(gain_db + radio.power_up_dbm - radio.noise_dbm)
        >>> rate_bps(radio.bandwidth_up_hz, snr, interference=np.zeros(1)).round(-2)
        array([114800.])
    """

    bandwidth_up_hz: float
    bandwidth_down_hz: float
    power_up_dbm: float
    power_down_dbm: float
    noise_dbm: float
    path_loss_db: float
    path_loss_slope_db: float
    min_distance_m: float
    rayleigh: bool
    interference_db: tuple[float, float]
    payload_bits: float


def path_gain_db(distance_km: FloatArray, radio: Radio) -> FloatArray:
    """Return the average gain h_ij: -(PL_1km + slope log10(d / 1 km)).

    Args:
        distance_km: Distances in km, any shape.
        radio: Path loss at 1 km and its slope.

    Returns:
        Gains in dB, the same shape.
    """
    gain = np.log10(distance_km)
    gain *= -radio.path_loss_slope_db
    gain -= radio.path_loss_db
    return gain


def from_db(decibel: FloatArray) -> FloatArray:
    """Return the ratio 10^(x / 10) of x decibels."""
    ratio = decibel * (np.log(10.0) / 10.0)
    return np.exp(ratio, out=ratio) if isinstance(ratio, np.ndarray) else np.exp(ratio)


def rate_bps(bandwidth_hz: float, snr: FloatArray, interference: FloatArray) -> FloatArray:
    """Return the rate of equations (3) and (4), B log2(1 + P h / (I + sigma^2)).

    Args:
        bandwidth_hz: B in Hz.
        snr: P h / sigma^2, any shape.
        interference: I / sigma^2, the same shape.

    Returns:
        Rates in bits per second, the same shape.
    """
    return bandwidth_hz * np.log2(1.0 + snr / (1.0 + interference))


def interference_scales(
    seeds: Sequence[int], clients: int, channels: int, radio: Radio
) -> tuple[FloatArray, FloatArray]:
    """Return s_ij / sigma^2 of down- and uplink, each (R, U, N): uniform in dB, drawn once per pair (reading 2)."""
    low, high = radio.interference_db
    down, up = np.empty((2, len(seeds), clients, channels))
    for r, seed in enumerate(seeds):
        rng = generator(seed, "interference-scale")
        down[r] = from_db(rng.uniform(low, high, (clients, channels)))
        up[r] = from_db(rng.uniform(low, high, (clients, channels)))
    return down, up


def interference_scales_of(
    seeds: Sequence[int], pairs: int, radio: Radio, replica: IntArray, index: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the scales of `interference_scales` for some pairs only, without drawing the others.

    Args:
        seeds: R seeds, one per replica.
        pairs: Number of client-channel pairs of a replica.
        radio: Range of the scales.
        replica: (K,) replica of each pair, in ascending order.
        index: (K,) number of each pair in its replica: client x channels + channel, in ascending order.

    Returns:
        Scales of down- and uplink, each (K,).
    """
    low, high = radio.interference_db
    decibel = np.empty((2, len(index)))
    for r, seed in enumerate(seeds):
        of_replica = np.flatnonzero(replica == r)
        rng = generator(seed, "interference-scale")
        bits = rng.bit_generator
        assert isinstance(bits, np.random.PCG64), "advance counts the numbers of this generator"
        drawn = 0  # a uniform number takes one step of the generator
        for direction in range(2):
            for k in of_replica:
                bits.advance(int(index[k]) + direction * pairs - drawn)
                decibel[direction, k] = rng.uniform(low, high)
                drawn = int(index[k]) + direction * pairs + 1
    down, up = from_db(decibel)
    return down, up
