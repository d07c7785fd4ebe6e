"""Cells of a study, their keys, and the batches of seeds that they are computed in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedlane.experiments.engine.user_code import class_digests, code_digests
from fedlane.experiments.engine.work_batches import WorkBatch, digest
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import BatchPolicy
from fedlane.scheduling.registry import make_policy, resolved_parameters
from fedlane.simulation.footprint import TRACE_BYTES_PER_CHANNEL, TRACE_BYTES_PER_CLIENT
from fedlane.simulation.setup import own_data_digest

RESULT_VERSION = 1
"""Version of the results of this code. Raise it when a change of the code changes results: stored ones are then not
used any more."""
MEASURE = "fedlane.experiments.engine.measuring:measure"
SCHEDULE_SEEDS, LEARNING_SEEDS, GPU_SEEDS = 64, 8, 64
"""Largest number of seeds in a batch without learning, with learning on a CPU, and on a GPU."""
BATCH_BYTES = 256e6
"""About the largest memory of a batch's rounds and pairs."""
BYTES_PER_PAIR = 64


@dataclass(frozen=True)
class Cell:
    """A scenario under a policy, for some seeds.

    Attributes:
        scenario: The scenario.
        policy: The policy as the user named it, for example ``mamab-om:V=10``.
        seeds: The seeds, all different.
        learning: Whether the model is trained.
        device: Class of the device that trains it, ``cpu`` or ``cuda``.
    """

    scenario: Scenario
    policy: str
    seeds: tuple[int, ...]
    learning: bool = True
    device: str = "cpu"

    def description(self) -> dict[str, Any]:
        """Return everything that changes the results, apart from the seeds, as plain values.

        Names do not: neither the scenario's nor the spelling of the policy (``lane`` and ``lane:V=5`` are the same).
        Parameters of other policies have no effect, nor has the device where nothing is learned.

        Raises:
            InputError: The policy or one of its parameters is unknown.
        """
        policy = make_policy(self.policy, self.scenario.policies)
        scenario = self.scenario.model_dump(mode="json", exclude={"name", "policies"})
        return {
            "result_version": RESULT_VERSION,
            "scenario": scenario,
            "policy": {
                "name": policy.name,
                "class": _class_name(policy),
                "version": policy.version,
                "parameters": resolved_parameters(policy),
            },
            "learning": self.learning,
            "device": self.device if self.learning else None,
            "code": self._user_code(policy),
            **self._user_data(),
        }

    def _user_code(self, policy: BatchPolicy) -> dict[str, str]:
        """Digests of the user's code that a result depends on, by module."""
        digests = class_digests(_class(policy))
        if self.learning and ":" in self.scenario.learning.model:
            digests |= code_digests(self.scenario.learning.model.partition(":")[0])
        return digests

    def _user_data(self) -> dict[str, str]:
        """Digest of the user's data set, under ``data``; empty for a built-in one."""
        data = own_data_digest(self.scenario.data.dataset)
        return {} if data is None else {"data": data["sha256"]}

    def batch_seeds(self) -> int:
        """Return the number of seeds in a batch, which depends on the cell alone."""
        network, rounds = self.scenario.network, self.scenario.rounds
        per_round = TRACE_BYTES_PER_CHANNEL * network.channels + TRACE_BYTES_PER_CLIENT * network.clients
        per_seed = rounds * per_round + BYTES_PER_PAIR * network.channels * network.clients
        limit = SCHEDULE_SEEDS
        if self.learning:
            limit = GPU_SEEDS if self.device == "cuda" else LEARNING_SEEDS
        return max(1, min(limit, int(BATCH_BYTES / per_seed)))

    def batches(self, function: str = MEASURE) -> list[WorkBatch]:
        """Split the cell into batches of its seeds, in their order.

        Args:
            function: The function that measures a batch, as ``module:name``; another one gives other keys.

        Raises:
            InputError: The policy or one of its parameters is unknown.
        """
        description, size = self.description(), self.batch_seeds()
        if function != MEASURE:
            description["function"] = function
        values: dict[str, Any] = {
            "scenario": self.scenario.model_dump(mode="json"),
            "policy": self.policy,
            "learning": self.learning,
            "device": self.device,
            **{name: description[name] for name in ("code", "data") if name in description},
        }
        batches = []
        for first in range(0, len(self.seeds), size):
            seeds = list(self.seeds[first : first + size])
            key = digest({**description, "seeds": seeds})
            gpu = self.learning and self.device == "cuda"
            batches.append(WorkBatch(key, function, {**values, "seeds": seeds}, needs_gpu=gpu))
        return batches


def unique_batches(batches: Iterable[WorkBatch]) -> list[WorkBatch]:
    """Return batches in their order, each key once."""
    return list({batch.key: batch for batch in batches}.values())


def _class(policy: BatchPolicy) -> type:
    """Class of a policy; a policy for a single replica is wrapped, and its own class counts."""
    return type(getattr(policy, "single", policy))


def _class_name(policy: BatchPolicy) -> str | None:
    """Name of a user's class, which may be registered under any name; None for FedLane's own."""
    policy_class = _class(policy)
    own = policy_class.__module__.partition(".")[0] == "fedlane"
    return None if own else f"{policy_class.__module__}:{policy_class.__qualname__}"
