"""Rayleigh fading: Clarke's model as a function of the path travelled, or constant over coherence times.

Clarke's fading is h = K^(-1/2) sum exp(i (2 pi w cos a_j + phi_j)), where w is the path in wavelengths, or the Doppler
frequency times the time. The K directions a_j are equally spaced from a random first one, and the phases phi_j are
random. The autocorrelation of h over a distance of w wavelengths is J_0(2 pi w): exactly, on average over seeds; in
each realisation up to 2 |J_K(2 pi w)|, which is below 1e-3 up to 3.5 wavelengths. The mean power is 1. The power's
second moment is 2 - 1 / K instead of 2: with 32 directions its distribution is exponential up to 0.005.
"""

from collections.abc import Sequence

import numpy as np

from fedlane.network.shadowing import halved_sum
from fedlane.network.tr38901 import LIGHT_M_S
from fedlane.records import FloatArray, IntArray
from fedlane.rng import hashed_bits, hashed_uniform, keys
from fedlane.validate import positive

DIRECTIONS_OF_ARRIVAL = 32


def doppler_hz(speed_m_s: FloatArray, carrier_hz: float) -> FloatArray:
    """Return the largest Doppler shift v f / c in Hz, of speeds in metres per second."""
    return speed_m_s * (carrier_hz / LIGHT_M_S)


def coherence_s(largest_doppler_hz: FloatArray) -> FloatArray:
    """Return Clarke's coherence time 0.423 / f_D in seconds (Rappaport, Wireless Communications, 5.4); inf at 0 Hz."""
    with np.errstate(divide="ignore"):
        return np.sqrt(9.0 / (16.0 * np.pi)) / np.asarray(largest_doppler_hz, np.float64)


class ClarkeFading:
    """Fading of every pair as a function of its client's path; the pairs are independent.

    Args:
        seeds: R seeds, one per replica.
        channels: Number of channels, N.

    Examples:
        >>> fading = ClarkeFading([0, 7], channels=4)
        >>> fading.power(wavelengths=np.zeros((2, 10))).shape  # where the clients are at time 0
        (2, 10, 4)
    """

    def __init__(self, seeds: Sequence[int], channels: int) -> None:
        self._key = keys(seeds, "clarke-fading")
        self._channels = channels

    def amplitude(
        self, wavelengths: FloatArray, channel: IntArray | None = None, client: IntArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return the real and the imaginary part of the channel's coefficient.

        Args:
            wavelengths: (R, U) path of each client in wavelengths: `Mobility.travelled_m` times carrier / c, or the
                Doppler frequency times the clock.
            channel: (R, U) channel of each client (-1 counts as 0); None for all channels.
            client: (R, U) numbers of the clients in the columns; None for 0, 1, ...

        Returns:
            Two arrays, (R, U), or (R, U, N) for all channels. Each part has mean 0 and variance 1/2.
        """
        key = self._key[:, None]
        client = np.arange(wavelengths.shape[1]) if client is None else client
        if channel is None:
            pair = hashed_bits(key[..., None], client[..., None], np.arange(self._channels))
            wavelengths = np.broadcast_to(wavelengths[..., None], pair.shape)
        else:
            pair = hashed_bits(key, client, np.maximum(channel, 0))
        number = np.arange(DIRECTIONS_OF_ARRIVAL)
        first = hashed_uniform(pair, -1)[..., None]
        shift = wavelengths[..., None] * np.cos((2.0 * np.pi / DIRECTIONS_OF_ARRIVAL) * (number + first))
        # Whole turns are dropped before they are multiplied, which keeps the precision of long paths.
        angle = 2.0 * np.pi * (shift - np.floor(shift) + hashed_uniform(pair[..., None], number))
        scale = DIRECTIONS_OF_ARRIVAL**-0.5
        return scale * halved_sum(np.cos(angle)), scale * halved_sum(np.sin(angle))

    def power(
        self, wavelengths: FloatArray, channel: IntArray | None = None, client: IntArray | None = None
    ) -> FloatArray:
        """Return the power |h|^2, with mean 1; the arguments are those of `amplitude`."""
        real, imaginary = self.amplitude(wavelengths, channel, client)
        return real**2 + imaginary**2

    def power_of_assigned(self, wavelengths: FloatArray, channel: IntArray) -> FloatArray:
        """Return the power of the clients that have a channel, and 1 for the others; arguments as for `amplitude`.

        The fading is the largest part of a round's time, and most clients have no channel.
        """
        assigned = channel >= 0
        columns = np.argsort(~assigned, axis=1, kind="stable")[:, : max(1, int(assigned.sum(axis=1).max()))]
        rows = np.arange(len(channel))[:, None]
        power = np.ones(channel.shape)
        power[rows, columns] = self.power(wavelengths[rows, columns], channel[rows, columns], columns)
        return np.where(assigned, power, 1.0)


class BlockFading:
    """Fading that is constant over coherence times and independent between them: its power is exponential.

    Args:
        seeds: R seeds, one per replica.
        channels: Number of channels, N.
        coherence_s: Coherence time in seconds.
    """

    def __init__(self, seeds: Sequence[int], channels: int, coherence_s: float) -> None:
        positive("the coherence time", coherence_s)
        self._key = keys(seeds, "block-fading")
        self._channels = channels
        self._coherence_s = coherence_s

    def power(self, clock_s: FloatArray, clients: int, channel: IntArray | None = None) -> FloatArray:
        """Return the power at an instant, with mean 1.

        Args:
            clock_s: (R,) or (R, U) instants in seconds.
            clients: Number of clients, U.
            channel: (R, U) channel of each client (-1 counts as 0); None for all channels.

        Returns:
            (R, U), or (R, U, N) for all channels.
        """
        block = np.floor((clock_s if clock_s.ndim == 2 else clock_s[:, None]) / self._coherence_s).astype(np.int64)
        key, client = self._key[:, None], np.arange(clients)
        if channel is None:
            uniform = hashed_uniform(key[..., None], block[..., None], client[:, None], np.arange(self._channels))
        else:
            uniform = hashed_uniform(key, block, client, np.maximum(channel, 0))
        return -np.log(uniform)
