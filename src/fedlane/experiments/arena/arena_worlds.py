"""The worlds of the arena, their target accuracies, and whether their data are on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlane.learning.datasets import dataset_info, locate
from fedlane.network.trace_files import find_trace
from fedlane.scenario import Scenario
from fedlane.validate import InputError

TARGETS = {
    "cell-3gpp": 0.65,
    "city-munich": 0.65,
    "campus-5g": 0.65,
    "commute-lte": 0.65,
    "phones": 0.60,
    "drifting": 0.65,
    "churn": 0.65,
    "cell-1000": 0.70,
    "paper-fmnist": 0.70,
}
"""The arena's worlds and their target accuracies, chosen on development seeds: `random` reaches each in most runs."""
TUNING_WORLDS = ("cell-3gpp", "city-munich", "phones", "drifting", "churn")
"""Worlds on which parameters are tuned. Their data come with the package; the others test whether tuning transfers."""
LARGE_WORLDS = ("cell-1000",)
"""Worlds that `--quick` leaves out."""


@dataclass(frozen=True)
class ArenaWorld:
    """A world with its settings.

    Attributes:
        name: The preset or the file, as the user named it.
        scenario: Its scenario, with a target accuracy if there is one.
    """

    name: str
    scenario: Scenario

    @property
    def target_accuracy(self) -> float | None:
        """Accuracy to which the time is measured."""
        return self.scenario.learning.target_accuracy

    def missing_data(self, *, learning: bool) -> str | None:
        """Return in one line which of the world's data are not on this machine; None if nothing is missing.

        Args:
            learning: Whether a model will be trained.
        """
        scenario = self.scenario
        try:
            if scenario.network.model == "trace":
                find_trace(str(scenario.network.trace))
            if scenario.availability.model == "trace":
                find_trace(str(scenario.availability.trace))
        except InputError as error:
            return str(error)
        info = dataset_info(scenario.data.dataset)
        if learning and info.files and locate(info) is None:
            return f"the data set {info.name} is not on this machine (fedlane run {self.name} downloads it)"
        return None


def make_world(name: str, settings: Sequence[str] = (), rounds: int | None = None) -> ArenaWorld:
    """Return a world by the name of a preset or the path of a TOML file.

    Args:
        name: The name or path.
        settings: Changes to its values, ``KEY=VALUE``.
        rounds: Number of rounds, instead of the scenario's.

    Raises:
        InputError: There is no such world, or a setting is invalid.
    """
    scenario = Scenario.load(name)
    if scenario.learning.target_accuracy is None and name in TARGETS:
        scenario = scenario.with_values({"learning.target_accuracy": TARGETS[name]})
    scenario = scenario.with_settings(list(settings))
    if rounds is not None:
        scenario = scenario.with_values({"rounds": rounds})
    return ArenaWorld(name, scenario)
