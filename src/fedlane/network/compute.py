"""The duration of local training (paper, Section II-B; reading 5 in docs/reading-the-paper.md)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedlane.network.energy import EnergyModel, compute_energy_j, powered_energy_j
from fedlane.records import FloatArray


class ComputeTimes(Protocol):
    """How long each client's local training takes, and how much energy: `Compute`, or `Phones`."""

    def time_s(self, uniform: FloatArray, replica: int | None = None) -> FloatArray:
        """Return the duration of local training in seconds, for uniform numbers (R, U), or (..., U) of one replica."""

    def energy_j(self, model: EnergyModel, compute_s: FloatArray) -> FloatArray:
        """Return the energy (R, U) of a local training that took ``compute_s`` (R, U), in joules."""


@dataclass(frozen=True)
class Compute:
    """Each client's work in a round, and the range of its processor frequency.

    Attributes:
        cycles: (R, U) processor cycles in a round, tau |D_i| Phi_i.
        frequency_low_hz: (U,) lowest frequency in Hz.
        frequency_high_hz: (U,) highest frequency in Hz.
        measured: Whether the duration was measured, so that cycles and frequencies are unknown.

    Examples:
        >>> import numpy as np
        >>> sizes = np.array([[6000.0, 3000.0]])
        >>> compute = Compute.of(sizes, np.array([3.0, 2.0]), 5, (10e3, 10e3), (30e3, 100e3))
        >>> compute.time_s(np.zeros((1, 2)))  # both at their lowest frequency
        array([[4.5, 1. ]])
    """

    cycles: FloatArray
    frequency_low_hz: FloatArray
    frequency_high_hz: FloatArray
    measured: bool = False

    @classmethod
    def of(
        cls,
        sizes: FloatArray,
        cycles_per_sample: FloatArray,
        local_iterations: int,
        frequency_low_hz: tuple[float, float],
        frequency_high_hz: tuple[float, float],
    ) -> "Compute":
        """Return the work of clients with given data sizes.

        Args:
            sizes: (R, U) training samples of each client, |D_i|.
            cycles_per_sample: (U,) processor cycles per sample, Phi_i.
            local_iterations: tau.
            frequency_low_hz: (offset, slope) in Hz: client i, counted from 1, has offset + slope i as its lowest
                frequency.
            frequency_high_hz: (offset, slope) of the highest frequency in Hz.

        Returns:
            The work of all clients.
        """
        number = np.arange(1, sizes.shape[-1] + 1)
        return cls(
            cycles=local_iterations * sizes * cycles_per_sample,
            frequency_low_hz=frequency_low_hz[0] + frequency_low_hz[1] * number,
            frequency_high_hz=frequency_high_hz[0] + frequency_high_hz[1] * number,
        )

    @classmethod
    def fixed(cls, seconds: FloatArray) -> "Compute":
        """Return work that takes the same time in every round.

        Args:
            seconds: (R, U) measured duration in seconds.

        Returns:
            The work of all clients.
        """
        unit_hz = np.ones(seconds.shape[-1])
        return cls(cycles=seconds, frequency_low_hz=unit_hz, frequency_high_hz=unit_hz, measured=True)

    def time_s(self, uniform: FloatArray, replica: int | None = None) -> FloatArray:
        """Return the duration tau |D_i| Phi_i / f_i, with f_i uniform over its range.

        Args:
            uniform: Uniform numbers in [0, 1), (R, U), or (..., U) for one replica.
            replica: Index of that replica; None for all.

        Returns:
            Seconds, in the shape of ``uniform``.
        """
        spread = self.frequency_high_hz - self.frequency_low_hz
        cycles = self.cycles if replica is None else self.cycles[replica]
        return cycles / (self.frequency_low_hz + spread * uniform)

    def energy_j(self, model: EnergyModel, compute_s: FloatArray) -> FloatArray:
        """Return the energy of local training (R, U) in joules: kappa x cycles x f^2, or power x time if measured.

        Args:
            model: The constants.
            compute_s: (R, U) durations in seconds, from which the frequencies f follow.
        """
        if self.measured:
            return powered_energy_j(model.device_w, compute_s)
        return compute_energy_j(model.kappa, self.cycles, self.cycles / compute_s)
