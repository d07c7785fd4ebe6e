"""The energy of a client's round: computing, transmitting, and being idle, in joules.

Computing with a processor of known frequency costs kappa x cycles x f^2 (the effective switched capacitance times the
square of the frequency for each cycle; Burd and Brodersen 1996, common in the literature on mobile edge computing).
With a measured device it costs the device's power times the time. Transmitting costs the transmission power over the
amplifier's efficiency, times the duration of the upload.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import FloatArray
from fedlane.validate import InputError, at_least


def compute_energy_j(kappa: float, cycles: ArrayLike, frequency_hz: ArrayLike) -> FloatArray:
    """Return kappa x cycles x f^2 in joules.

    Args:
        kappa: Effective switched capacitance in farads; 1e-28 is typical of a phone.
        cycles: Processor cycles, any shape.
        frequency_hz: Processor frequency in Hz, broadcast with the cycles.
    """
    return kappa * np.asarray(cycles, np.float64) * np.square(np.asarray(frequency_hz, np.float64))


def powered_energy_j(power_w: ArrayLike, time_s: ArrayLike) -> FloatArray:
    """Return power times time in joules; both are broadcast together."""
    return np.multiply(power_w, time_s, dtype=np.float64)


def watts(power_dbm: float) -> float:
    """Return the power in watts of a level in dBm."""
    return float(10.0 ** ((power_dbm - 30.0) / 10.0))


@dataclass(frozen=True)
class EnergyModel:
    """The constants of a client's energy, and the battery that it may drain.

    Attributes:
        kappa: Effective switched capacitance in farads, for processors of known frequency.
        efficiency: Share of the transmitter's power that is radiated, in (0, 1].
        idle_w: Power while the client neither computes nor transmits, which is during its download, in watts.
        battery_j: Energy of a full battery in joules; None for no limit.
        device_w: Power of a device while it computes, where the duration was measured, in watts; 3 W is typical of a
            phone under sustained load.

    Raises:
        InputError: A value is out of its range.
    """

    kappa: float = 1e-28
    efficiency: float = 0.35
    idle_w: float = 0.0
    battery_j: float | None = None
    device_w: float = 3.0

    def __post_init__(self) -> None:
        at_least("energy.kappa", self.kappa, 0.0)
        at_least("energy.idle_w", self.idle_w, 0.0)
        at_least("energy.device_w", self.device_w, 0.0)
        if not 0 < self.efficiency <= 1:
            raise InputError(f"energy.efficiency must be greater than 0 and at most 1, got {self.efficiency}")
        if self.battery_j is not None and not self.battery_j > 0:
            raise InputError(f"energy.battery_j must be greater than 0, got {self.battery_j}")

    def transmit_energy_j(self, power_up_dbm: float, upload_s: FloatArray) -> FloatArray:
        """Return radiated power / efficiency x time in joules.

        Args:
            power_up_dbm: Radiated power of a client in dBm.
            upload_s: Durations of the uploads in seconds, any shape; a failed upload costs its time as well.
        """
        return powered_energy_j(watts(power_up_dbm) / self.efficiency, upload_s)

    def round_energy_j(
        self, compute_j: FloatArray, power_up_dbm: float, download_s: FloatArray, upload_s: FloatArray
    ) -> FloatArray:
        """Return the energy of a round in joules: waiting for the download, computing, and transmitting.

        Args:
            compute_j: Energy of the computation, (R, U) in joules.
            power_up_dbm: Radiated power of a client in dBm.
            download_s: (R, U) durations of the downloads in seconds; NaN where a client has no channel.
            upload_s: (R, U) durations of the uploads in seconds, as far as they took place.

        Returns:
            (R, U) joules, 0 where a client has no channel.
        """
        total_j = compute_j + powered_energy_j(self.idle_w, download_s) + self.transmit_energy_j(power_up_dbm, upload_s)
        return np.where(np.isnan(download_s), 0.0, total_j)
