"""Who is there, what each client attempts in a round, and what the attempts cost in energy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import fitting_array
from fedlane.network.compute import ComputeTimes
from fedlane.network.energy import EnergyModel
from fedlane.records import BoolArray, Delays, FloatArray, IntArray
from fedlane.simulation.setup import Setup
from fedlane.validate import InputError


@dataclass(frozen=True)
class Attempts:
    """What the assigned clients of a round did.

    Attributes:
        delays: The three parts (R, U); NaN for an unassigned client, for a client that left, and for a transfer that
            never ended.
        punctual: Whether a client was assigned, stayed and met the deadline (R, U).
        energy_j: Energy that each client spent until the deadline (R, U), in joules; 0 if unassigned.
    """

    delays: Delays
    punctual: BoolArray
    energy_j: FloatArray


@dataclass(frozen=True)
class ClientTotals:
    """Sums over all rounds so far.

    Attributes:
        present_rounds: (R, U): number of rounds at whose start each client was there.
        energy_j: (R, U): energy that each client has spent, in joules; NaN if unknown, as in a real federation.
    """

    present_rounds: IntArray
    energy_j: FloatArray

    @classmethod
    def zero(cls, replicas: int, clients: int) -> "ClientTotals":
        """Return the totals before the first round."""
        return cls(np.zeros((replicas, clients), np.int64), np.zeros((replicas, clients)))

    def add(self, present: BoolArray, energy_j: FloatArray) -> "ClientTotals":
        """Return the totals after another round."""
        return ClientTotals(self.present_rounds + present, self.energy_j + energy_j)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The totals as arrays of a checkpoint."""
        return {"present_rounds": self.present_rounds, "energy_j": self.energy_j}

    def restored(self, saved: Mapping[str, NDArray[Any]], rounds: int) -> "ClientTotals":
        """Return the totals of a checkpoint after ``rounds`` rounds; an old one has none, and everybody was there.

        Raises:
            InputError: No run can have written these totals.
        """
        if "present_rounds" not in saved:
            return ClientTotals(np.full_like(self.present_rounds, rounds), self.energy_j)
        present_rounds = fitting_array(saved, "present_rounds", self.present_rounds)
        energy_j = fitting_array(saved, "energy_j", self.energy_j)
        if np.any((present_rounds < 0) | (present_rounds > rounds)):
            raise InputError(f"present_rounds must be between 0 and {rounds}")
        if not np.all(np.isfinite(energy_j) & (energy_j >= 0)):
            raise InputError("energy_j must be finite and at least 0")
        return ClientTotals(present_rounds.copy(), energy_j.copy())


class Attendance:
    """The presence and the attempts of all clients of a run.

    Args:
        setup: The prepared run: its network, availability and energy.
    """

    def __init__(self, setup: Setup) -> None:
        self.network, self._availability, self._energy = setup.network, setup.availability, setup.energy
        self._power_up_dbm = setup.scenario.network.power_up_dbm

    def present(self, clock_s: FloatArray, spent_j: FloatArray) -> BoolArray:
        """Return who is there (R, U) at clocks (R,): a client is absent if its battery is empty.

        Args:
            clock_s: (R,) simulated time in seconds.
            spent_j: (R, U) energy that each client has spent, in joules.
        """
        present = self._availability.present(clock_s)
        return present if self._energy.battery_j is None else present & (spent_j < self._energy.battery_j)

    def attempt(self, round: int, clock_s: FloatArray, assignment: IntArray) -> Attempts:
        """Return what the assigned clients do in a round that begins at clocks (R,); ``assignment`` is (R, U)."""
        deadline_s = self.network.deadline_s
        delays = self.network.delays(round, clock_s, assignment)
        assigned, total_s = assignment >= 0, delays.total_s
        end_s = np.where(assigned, clock_s[:, None] + np.fmin(total_s, deadline_s), np.nan)
        left = self._availability.leaves(clock_s, end_s)
        parts = (delays.download_s, delays.compute_s, delays.upload_s)
        seen = (np.where(left | ~np.isfinite(part), np.nan, part) for part in parts)
        energy_j = attempt_energy_j(self._energy, self.network.compute, self._power_up_dbm, delays, deadline_s)
        return Attempts(Delays(*seen), (total_s <= deadline_s) & ~left, np.where(assigned, energy_j, 0.0))


def attempt_energy_j(
    model: EnergyModel, compute: ComputeTimes, power_up_dbm: float, delays: Delays, deadline_s: float
) -> FloatArray:
    """Return the energy of attempts (R, U) in joules: late and failed ones count until the deadline, which ends them.

    Args:
        model: The constants.
        compute: The network's `ComputeTimes`.
        power_up_dbm: Radiated power of a client in dBm.
        delays: What each client would need, infinite for a transfer that never ends.
        deadline_s: The deadline in seconds.
    """
    download_s = np.minimum(delays.download_s, deadline_s)
    compute_s = np.minimum(delays.compute_s, deadline_s - download_s)
    upload_s = np.minimum(delays.upload_s, deadline_s - download_s - compute_s)
    share = compute_s / delays.compute_s  # of the computation that was done
    compute_j = share * compute.energy_j(model, delays.compute_s)
    return model.round_energy_j(compute_j, power_up_dbm, download_s, upload_s)
