"""The radio link of a pair: path loss, interference, fading, rate (paper, Section II-A, equations (3) and (4)).

Powers are carried relative to the noise power, so that the rate is B log2(1 + snr / (1 + interference)).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray
from fedlane.rng import generator


@dataclass(frozen=True)
class Radio:
    """Constants of the air interface. Powers in dBm, losses in dB."""

    bandwidth_up_hz: float
    bandwidth_down_hz: float
    power_up_dbm: float
    power_down_dbm: float
    noise_dbm: float
    path_loss_db: float
    """At 1 km."""
    path_loss_slope_db: float
    """Per decade of distance."""
    min_distance_m: float
    rayleigh: bool
    interference_db: tuple[float, float]
    """Range of each pair's interference scale s_ij, relative to noise."""
    payload_bits: float


def path_gain_db(distance_km: FloatArray, radio: Radio) -> FloatArray:
    """The average gain h_ij in dB: -(PL_1km + slope log10(d / 1 km))."""
    gain = np.log10(distance_km)
    gain *= -radio.path_loss_slope_db
    gain -= radio.path_loss_db
    return gain


def from_db(decibel: FloatArray) -> FloatArray:
    """10^(x / 10)."""
    return np.exp(decibel * (np.log(10.0) / 10.0))


def rate_bps(bandwidth_hz: float, snr: FloatArray, interference: FloatArray) -> FloatArray:
    """Equations (3), (4): B log2(1 + P h / (I + sigma^2)), with snr = P h / sigma^2 and interference = I / sigma^2."""
    return bandwidth_hz * np.log2(1.0 + snr / (1.0 + interference))


def interference_scales(
    seeds: Sequence[int], clients: int, channels: int, radio: Radio
) -> tuple[FloatArray, FloatArray]:
    """s_ij / sigma^2 of the down- and the uplink, each (R, U, N): uniform in dB, drawn once per pair (reading 2)."""
    low, high = radio.interference_db
    down, up = np.empty((2, len(seeds), clients, channels))
    for r, seed in enumerate(seeds):
        rng = generator(seed, "interference-scale")
        down[r] = from_db(rng.uniform(low, high, (clients, channels)))
        up[r] = from_db(rng.uniform(low, high, (clients, channels)))
    return down, up
