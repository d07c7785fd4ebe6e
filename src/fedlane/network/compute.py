"""How long local training takes (paper, Section II-B; reading 5)."""

from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray


@dataclass(frozen=True)
class Compute:
    """Each client's work per round and the range its CPU frequency is drawn from."""

    cycles: FloatArray
    """(R, U): tau |D_i| Phi_i."""
    frequency_low_hz: FloatArray
    """(U,)"""
    frequency_high_hz: FloatArray
    """(U,)"""

    @classmethod
    def of(
        cls,
        sizes: FloatArray,
        cycles_per_sample: FloatArray,
        local_iterations: int,
        frequency_low_hz: tuple[float, float],
        frequency_high_hz: tuple[float, float],
    ) -> "Compute":
        """From data sizes (R, U), Phi_i (U,), tau and both ends of the frequency, each (offset, slope) in i from 1."""
        number = np.arange(1, sizes.shape[-1] + 1)
        return cls(
            cycles=local_iterations * sizes * cycles_per_sample,
            frequency_low_hz=frequency_low_hz[0] + frequency_low_hz[1] * number,
            frequency_high_hz=frequency_high_hz[0] + frequency_high_hz[1] * number,
        )

    @classmethod
    def fixed(cls, seconds: FloatArray) -> "Compute":
        """The same time every round, from measured seconds (R, U)."""
        one = np.ones(seconds.shape[-1])
        return cls(cycles=seconds, frequency_low_hz=one, frequency_high_hz=one)

    def time_s(self, uniform: FloatArray, replica: int | None = None) -> FloatArray:
        """tau |D_i| Phi_i / f_i, f_i uniform over its range; from uniform numbers (R, U), or (..., U) of a replica."""
        spread = self.frequency_high_hz - self.frequency_low_hz
        cycles = self.cycles if replica is None else self.cycles[replica]
        return cycles / (self.frequency_low_hz + spread * uniform)
