"""What there is to choose from: policies, scenarios and data sets, as rows for a table."""

from typing import Any

Rows = tuple[list[tuple[str, ...]], tuple[str, ...]]
"""Rows and their headings."""


def policies() -> Rows:
    from fedlane.scheduling import registry

    known = registry.policies().items()
    rows = [(name, _shown(registry.parameters(cls)), cls.summary) for name, cls in known]
    return [tuple(row) for row in rows], ("policy", "parameters", "what it is")


def scenarios() -> Rows:
    from fedlane.scenario import Scenario, presets

    rows = []
    for s in map(Scenario.load, presets()):
        size = f"{s.network.clients} x {s.network.channels}"
        rows.append((s.name, size, str(s.rounds), s.data.dataset, s.learning.model, s.privacy.mechanism))
    return [tuple(row) for row in rows], ("scenario", "clients x channels", "rounds", "dataset", "model", "privacy")


def datasets() -> Rows:
    from fedlane.learning.datasets import DATASETS

    rows = []
    for d in DATASETS.values():
        counts = f"{d.classes * d.train_per_class:,} + {d.classes * d.test_per_class:,}"
        rows.append((d.name, d.title, counts, str(d.classes), d.licence))
    return [tuple(row) for row in rows], ("dataset", "what it is", "train + test", "classes", "licence")


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
