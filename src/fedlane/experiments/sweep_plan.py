"""The plan of a sweep: every policy in every combination of the grid's values, checked before anything is computed."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedlane.experiments.engine.cells import RESULT_VERSION, Cell
from fedlane.experiments.engine.work_batches import WorkBatch
from fedlane.experiments.sweep_grid import GridValue, check_grid, combinations, shown
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import check_losses
from fedlane.scheduling.registry import make_policy, policies, split_name
from fedlane.validate import InputError, ScenarioWarning

FORMAT = 1


@dataclass(frozen=True)
class SweepCell:
    """A policy in one combination of the grid's values.

    Attributes:
        values: The combination, by key.
        policy: The policy as the user named it.
        batches: Its batches of seeds; empty if it is not valid.
        error: Why it is not valid, in one line; None if it is.
    """

    values: Mapping[str, GridValue]
    policy: str
    batches: Sequence[WorkBatch]
    error: str | None = None

    @property
    def label(self) -> str:
        """The cell in one line, for example ``lane network.clients=10``."""
        return " ".join([self.policy, *(f"{key}={shown(value)}" for key, value in self.values.items())])


@dataclass(frozen=True)
class SweepPlan:
    """Everything that defines a sweep. Invalid input is refused when `cells` is first used.

    Attributes:
        scenario: The scenario whose values the grid changes.
        policies: The policies, by name.
        grid: Values by key: scenario keys such as ``network.clients``, or policy parameters, ``policies.lane.V``.
        seeds: The seeds.
        learning: Whether models are trained.
        device: Class of the device that trains them, ``cpu`` or ``cuda``.
    """

    scenario: Scenario
    policies: tuple[str, ...]
    grid: Mapping[str, Sequence[GridValue]]
    seeds: tuple[int, ...]
    learning: bool = True
    device: str = "cpu"

    @cached_property
    def cells(self) -> list[SweepCell]:
        """Every policy in every combination; the policies vary fastest.

        Raises:
            InputError: A policy, a key or a value is wrong. A value that fits in some combinations only does not
                raise: the other combinations become cells with an ``error``.
        """
        self._check()
        cells = []
        for values in combinations(self.grid):
            scenario, error = self._scenario(values)
            for policy in self.policies:
                cells.append(self._cell(scenario, error, values, policy))
        for key, options in self.grid.items():
            for value in options:
                same = [cell for cell in cells if cell.values[key] is value]  # NaN is not equal to itself
                if all(cell.error is not None for cell in same):
                    raise InputError(str(same[0].error))
        return cells

    @cached_property
    def batches(self) -> list[WorkBatch]:
        """The batches of all cells."""
        return [batch for cell in self.cells for batch in cell.batches]

    def description(self) -> dict[str, Any]:
        """Return what a sweep's folder keeps of its plan, as plain values."""
        return {
            "format": FORMAT,
            "result_version": RESULT_VERSION,
            "scenario": self.scenario.model_dump(mode="json"),
            "policies": list(self.policies),
            "grid": {key: list(values) for key, values in self.grid.items()},
            "seeds": list(self.seeds),
            "learning": self.learning,
            "device": self.device,
        }

    def _check(self) -> None:
        """Raise `InputError` for what is wrong in every combination."""
        check_grid(self.grid)
        if not self.policies:
            raise InputError("a sweep needs at least one policy")
        if len(set(self.policies)) < len(self.policies):
            raise InputError(f"--policy names the same policy twice: {', '.join(self.policies)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError("a sweep needs at least one seed, and all seeds must be different")
        if min(self.seeds) < 0 or max(self.seeds) >= 2**63:
            raise InputError("seeds must be at least 0 and less than 2^63")
        chosen = [make_policy(policy, self._known(self.scenario, policy).policies) for policy in self.policies]
        for policy in chosen:
            check_losses(policy, learning=self.learning)
        names = {policy.name for policy in chosen} | {split_name(policy)[0] for policy in self.policies}
        for key in self.grid:
            head, _, rest = key.partition(".")
            if head == "policies":
                self._check_parameter(key, rest.rpartition(".")[0], rest.rpartition(".")[2], names)

    def _check_parameter(self, key: str, name: str, parameter: str, names: set[str]) -> None:
        """Raise `InputError` if a grid's policy parameter cannot have an effect in this sweep."""
        if not name:
            raise InputError(f"--grid {key} must have the form policies.NAME.PARAMETER")
        if name not in names:
            if name not in policies():
                make_policy(name)  # raises with the most similar name
            raise InputError(f"--grid {key}: add --policy {name}, which this sweep does not have")
        for policy in self.policies:
            base, inline = split_name(policy)
            if parameter in inline and name in (base, make_policy(policy).name):
                raise InputError(f"--grid {key} has no effect on --policy {policy}, which sets {parameter} itself")

    @cached_property
    def _names(self) -> Mapping[str, set[str]]:
        """The names under which a scenario has the parameters of each policy."""
        return {policy: {split_name(policy)[0], make_policy(policy).name} for policy in self.policies}

    def _known(self, scenario: Scenario, policy: str) -> Scenario:
        """Return a scenario without the parameters of the sweep's other policies that have to be imported.

        A cell is computed in a process that imports its own policy only, and would refuse their names as mistyped.
        """
        others = {name for other, names in self._names.items() if other != policy for name in names}
        others -= self._names[policy] | set(policies())
        kept = {name: values for name, values in scenario.policies.items() if name not in others}
        return scenario if len(kept) == len(scenario.policies) else scenario.model_copy(update={"policies": kept})

    def _scenario(self, values: Mapping[str, GridValue]) -> tuple[Scenario, str | None]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScenarioWarning)
                return self.scenario.with_values(values), None
        except InputError as error:
            return self.scenario, str(error)

    def _cell(self, scenario: Scenario, error: str | None, values: Mapping[str, GridValue], policy: str) -> SweepCell:
        if error is None:
            try:
                cell = Cell(self._known(scenario, policy), policy, self.seeds, self.learning, self.device)
                return SweepCell(values, policy, cell.batches())
            except InputError as wrong:
                error = str(wrong)
        return SweepCell(values, policy, (), error)
