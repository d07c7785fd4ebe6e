"""The metrics of replies: which numbers are usable, and how much one client's claim may weigh."""

import logging
import math
from collections.abc import Sequence

from flwr.app import MetricRecord, RecordDict

from fedlane.flower.protocol import LARGEST

logger = logging.getLogger("fedlane.flower")

METRICS, WEIGHT = "metrics", "num-examples"
"""The keys that Flower's strategies use."""
MAX_CLAIM = 3.0
"""A claimed number of examples or records counts at most this many times the median claim."""


def usable_metrics(content: RecordDict) -> dict[str, int | float]:
    """Return the metrics of a reply that are finite numbers, by name."""
    return {key: value for key, value in content.metric_records[METRICS].items() if _is_number(value)}  # type: ignore[misc]


def common_metrics(contents: Sequence[RecordDict]) -> list[MetricRecord]:
    """Return one record for each reply, with only the metrics that all replies have as finite numbers.

    Flower refuses all replies if their metrics differ.
    """
    usable = [usable_metrics(content) for content in contents]
    common = sorted(set.intersection(*map(set, usable))) if usable else []
    return [MetricRecord({key: record[key] for key in common}) for record in usable]


def evaluations(contents: Sequence[RecordDict], weight: str) -> list[tuple[int, MetricRecord]]:
    """Return the position and the metrics of the evaluations that may be averaged.

    - A reply has exactly one MetricRecord, with a weight above 0, which counts at most 3 times the median weight.
    - An accuracy outside [0, 1] counts as missing.
    - A reply without a metric that most of the others have is left out, so that it cannot hide the metric.
    """
    usable: dict[int, dict[str, int | float]] = {}
    for number, content in enumerate(contents):
        if isinstance(content.get(METRICS), MetricRecord) and len(content.metric_records) == 1:
            metrics = {key: value for key, value in usable_metrics(content).items() if abs(value) <= LARGEST}
            if not 0 <= metrics.get("accuracy", 0.0) <= 1:
                logger.warning("an evaluation's accuracy must be between 0 and 1, got %g", metrics.pop("accuracy"))
            if metrics.get(weight, 0.0) > 0:
                usable[number] = metrics
    names = {name for metrics in usable.values() for name in metrics}
    expected = {name for name in names if 2 * sum(name in metrics for metrics in usable.values()) > len(usable)}
    kept = {number: metrics for number, metrics in usable.items() if expected <= set(metrics)}
    caps = capped([metrics[weight] for metrics in kept.values()])
    return [
        (number, MetricRecord({**{name: metrics[name] for name in sorted(expected)}, weight: cap}))
        for (number, metrics), cap in zip(kept.items(), caps, strict=True)
    ]


def capped(claims: Sequence[float]) -> list[float]:
    """Return claims of at most 3 times their median each, so that fewer than half of them cannot decide an average."""
    cap = MAX_CLAIM * lower_median(claims)
    return [min(claim, cap) for claim in claims]


def lower_median(values: Sequence[float]) -> float:
    """Return the middle value, the smaller one of two, so that one of two clients cannot raise it; 0 without any."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
