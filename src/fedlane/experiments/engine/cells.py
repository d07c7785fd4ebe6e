"""Cells of a study, their keys, and the batches of seeds that they are computed in."""

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlane.experiments.engine.work_batches import WorkBatch, digest
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import Policy
from fedlane.scheduling.registry import make_policy, resolved_parameters, split_name
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
                "class": split_name(self.policy)[0] if _is_path(self.policy) else None,
                "version": policy.version,
                "parameters": resolved_parameters(policy),
            },
            "learning": self.learning,
            "device": self.device if self.learning else None,
            "code": self._user_code(policy),
        }

    def _user_code(self, policy: Policy) -> dict[str, str]:
        """Digests of the user's modules and data that a result depends on."""
        modules = {}
        if _is_path(self.policy):
            modules["policy"] = type(getattr(policy, "single", policy)).__module__
        if self.learning and ":" in self.scenario.learning.model:
            modules["model"] = self.scenario.learning.model.partition(":")[0]
        digests = {role: source_digest(name) for role, name in modules.items()}
        data = own_data_digest(self.scenario.data.dataset)
        return digests if data is None else {**digests, "data": data["sha256"]}

    def batch_seeds(self) -> int:
        """Return the number of seeds in a batch, which depends on the cell alone."""
        network, rounds = self.scenario.network, self.scenario.rounds
        per_round = TRACE_BYTES_PER_CHANNEL * network.channels + TRACE_BYTES_PER_CLIENT * network.clients
        per_seed = rounds * per_round + BYTES_PER_PAIR * network.channels * network.clients
        limit = SCHEDULE_SEEDS
        if self.learning:
            limit = GPU_SEEDS if self.device == "cuda" else LEARNING_SEEDS
        return max(1, min(limit, int(BATCH_BYTES / per_seed)))

    def batches(self) -> list[WorkBatch]:
        """Split the cell into batches of its seeds, in their order.

        Raises:
            InputError: The policy or one of its parameters is unknown.
        """
        description, size = self.description(), self.batch_seeds()
        values = {
            "scenario": self.scenario.model_dump(mode="json"),
            "policy": self.policy,
            "learning": self.learning,
            "device": self.device,
        }
        batches = []
        for first in range(0, len(self.seeds), size):
            seeds = list(self.seeds[first : first + size])
            key = digest({**description, "seeds": seeds})
            gpu = self.learning and self.device == "cuda"
            batches.append(WorkBatch(key, MEASURE, {**values, "seeds": seeds}, needs_gpu=gpu))
        return batches


def unique_batches(batches: Iterable[WorkBatch]) -> list[WorkBatch]:
    """Return batches in their order, each key once."""
    return list({batch.key: batch for batch in batches}.values())


def _is_path(policy: str) -> bool:
    return ":" in split_name(policy)[0]


def source_digest(module: str) -> str:
    """Return a digest of a module's source file; empty if it has none."""
    loaded = sys.modules.get(module)
    path = getattr(loaded, "__file__", None)
    if path is None:
        sys.path.insert(0, "")  # find a file in the current folder, as the import of a model does
        try:
            spec = importlib.util.find_spec(module)
            path = None if spec is None else spec.origin
        except (ImportError, ValueError):
            path = None
        finally:
            sys.path.remove("")
    if path is None or not Path(path).is_file():
        return ""
    return _file_digest(str(path), Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, changed_ns: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
