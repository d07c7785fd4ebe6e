"""What `fedlane run` and `fedlane compare` will simulate, from their options and a file's ``[run]``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedlane.cli.command_line import was_given
from fedlane.cli.options import with_target_accuracy
from fedlane.cli.session import messages, print_notes

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.scenario import Scenario
    from fedlane.scenario.run_settings import RunSettings
    from fedlane.scheduling.policy import BatchPolicy
    from fedlane.simulation.run import Simulation


@dataclass(frozen=True)
class RunPlan:
    """Settings of a simulation, apart from the policy."""

    scenario: "Scenario"
    seeds: Sequence[int]
    learning: bool
    device: str

    def check_policies(self, policies: Sequence[str], *, save_schedule: bool = False) -> "list[BatchPolicy]":
        """Return the policies; raise `InputError` for one that cannot be run, or whose schedule cannot be saved."""
        from fedlane.scheduling import make_policy
        from fedlane.scheduling.policy import check_losses, check_schedule

        made = [make_policy(name, self.scenario.policies) for name in policies]
        for policy in made:
            check_losses(policy, learning=self.learning)
            if save_schedule:
                check_schedule(policy)
        return made

    def check_size(self, policies: Sequence[str], *, quiet: bool) -> None:
        """Refuse runs that do not fit into memory, and say beforehand how long large runs take."""
        from fedlane.scheduling import make_policy
        from fedlane.simulation.footprint import available_bytes, check_memory, gigabytes
        from fedlane.simulation.trial import estimated_seconds, is_large

        for policy in policies:
            made = make_policy(policy, self.scenario.policies)
            learning, device = self.learning, self.device
            footprint = check_memory(
                self.scenario, made, len(self.seeds), learning=learning, device=device, bounded=True
            )
            if quiet or not is_large(self.scenario, len(self.seeds), learning=learning):
                continue
            with messages.status(f"{policy}: estimating the time"):
                seconds = estimated_seconds(self.scenario, policy, self.seeds, learning=learning, device=device)
            available = available_bytes()
            room = "" if available is None else f" of {gigabytes(available)} available"
            print_notes(
                [
                    f"{policy}: {len(self.seeds):,} seeds x {self.scenario.rounds:,} rounds take about "
                    f"{duration(seconds)} and {gigabytes(footprint.total)}{room}, estimated from a short trial"
                ]
            )

    def simulation(self, policy: str) -> "Simulation":
        """Prepare the simulation of a policy."""
        from fedlane.simulation.run import Simulation

        return Simulation(self.scenario, policy, self.seeds, learning=self.learning, device=self.device, bounded=True)

    def with_stored(self, stored: "RunSettings | None") -> "RunPlan":
        """Return the plan with a file's ``[run]`` for everything that the user gave no option for."""
        if stored is None:
            return self
        return RunPlan(
            self.scenario,
            self.seeds if was_given("seed", "seeds") else stored.seeds,
            self.learning if was_given("no_learning") else stored.learning,
            self.device if was_given("device") else stored.device,
        )

    def with_target(self, target: float | None, settings: list[str] | None) -> "RunPlan":
        """Return the plan with ``--target`` as the scenario's target accuracy."""
        scenario = with_target_accuracy(self.scenario, target, settings, no_learning=not self.learning)
        return replace(self, scenario=scenario)

    @property
    def target(self) -> float | None:
        """Accuracy to report the time to; None for a run that does not learn."""
        return self.scenario.learning.target_accuracy if self.learning else None


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it, rounded to two digits."""
    for unit, length in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{_two_digits(seconds / length)} {unit}"
    return f"{_two_digits(max(seconds, 1.0))} seconds"


def _two_digits(value: float) -> str:
    """A number rounded to two digits, never with an exponent."""
    return f"{float(f'{value:.2g}'):g}"
