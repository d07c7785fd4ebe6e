"""The settings of the paper's evaluation: what an experiment changes in a preset."""

from typing import Any

import numpy as np

from fedlane.learning.datasets import dataset_info
from fedlane.scenario import Scenario

_NONUNIFORM_800 = {"samples": 800, "privacy.epsilon": "nonuniform"}
_VARIOUS = {"samples": 800, "data.partition": "dirichlet", "data.noniid_degree": 0.5, "data.imbalance": 0.8}
"""Sizes from 0.2 to 1.8 times their mean, and clients whose labels are more or less skewed."""
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "private": {"privacy.epsilon": 0.8, "learning.batch_size": 10},
    "epsilon-0.8": {"privacy.epsilon": 0.8},
    "nonuniform": {"privacy.epsilon": "nonuniform"},
    "same-interference": {"same interference": True},
    "long-deadline": {"network.deadline_s": 60.0},
    "softmax": {"learning.model": "softmax"},
    "softmax-slow": {"learning.model": "softmax", "learning.learning_rate": 0.005},
    **{f"tau-{tau}": {"learning.local_iterations": tau} for tau in (1, 2, 10)},
    **{f"clients-{clients}": {"network.clients": clients} for clients in (6, 20, 40)},
    **{f"channels-{channels}": {"network.channels": channels} for channels in (2, 6, 8)},
    **{f"degree-{degree:g}": {"data.noniid_degree": degree} for degree in (0.0, 0.5, 0.95)},
    **{f"deadline-{factor:g}": {"deadline factor": factor} for factor in (0.5, 0.75, 1.5, 2.0)},
    "samples-800": {"samples": 800},
    "samples-800-epsilon-0.8": {"samples": 800, "privacy.epsilon": 0.8},
    "samples-800-private": {"samples": 800, "privacy.epsilon": 0.8, "learning.batch_size": 10},
    "samples-800-nonuniform": _NONUNIFORM_800,
    "samples-800-nonuniform-sqrt_d": {**_NONUNIFORM_800, "privacy.theta_noise": "sqrt_d"},
    "wide": {"preset": "paper-cifar10-wide"},
    "various": _VARIOUS,
    "various-sqrt_d": {**_VARIOUS, "privacy.theta_noise": "sqrt_d"},
}
"""Changes to the preset by setting.

A deadline factor multiplies the preset's deadline. With the same interference, all pairs have the middle of the
preset's range in dB. The key "preset" replaces the preset. The key "samples" sets the
samples per client and scales the cycles per sample, so that a client of mean size trains as long as in the preset: what
changes is learning, not the network.
"""


def with_setting(scenario: Scenario, setting: str) -> Scenario:
    """Return a preset with the changes of a setting of `SETTINGS`."""
    changes = dict(SETTINGS[setting])
    if "preset" in changes:
        return Scenario.load(changes["preset"])
    factor = changes.pop("deadline factor", None)
    if factor is not None:
        changes["network.deadline_s"] = factor * scenario.network.deadline_s
    if changes.pop("same interference", False):
        changes["network.interference_db"] = [float(np.mean(scenario.network.interference_db))] * 2
    samples = changes.pop("samples", None)
    if samples is not None:
        all_samples = int(dataset_info(scenario.data.dataset).class_totals.sum())
        scale = all_samples / (scenario.network.clients * samples)
        changes["data.samples_per_client"] = samples
        changes["compute.cycles_per_sample"] = scale * float(np.max(scenario.compute.cycles_per_sample))
    return scenario.with_values(changes)
