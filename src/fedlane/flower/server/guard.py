"""The guard: checks of every reply before it may enter the model. A rejected reply yields a one-line reason.

The bound on an update's norm is ``max_update_norm``. Without that setting it is 10 times the median of the clients'
last norms; until 5 updates have been seen it is 10 (|model| + sqrt(d)) with d weights, which no training of a few steps
reaches. Every client has one vote. An update above the bound is recorded at the bound, so that the bound can grow when
all updates grow; an update of norm 0 is not recorded. The bound stops accidents and crude attacks. It does not stop
half or more of the clients acting together; Flower's robust aggregation strategies are meant for that.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedlane.flower.protocol import LARGEST, TRAINED, Order, ProtocolError, Report
from fedlane.validate import InputError, positive

FACTOR, MIN_UPDATES = 10.0, 5
ARRAYS, METRICS, WEIGHT = "arrays", "metrics", "num-examples"
"""The keys that Flower's strategies use."""
MAX_EXAMPLES_PER_RECORD = 10.0
"""A client may claim at most this many examples for each record of its introduction."""


class Dropped(InputError):
    """A reply is not used; the message states the reason."""


class Guard:
    """Checks replies against the model that was sent, and remembers the norm of each client's last update."""

    def __init__(self, max_update_norm: float | None = None, weight: str = WEIGHT) -> None:
        """``weight`` is the key of the metric by which the aggregation weights replies."""
        if max_update_norm is not None:
            positive("max_update_norm", max_update_norm)
        self.max_update_norm, self.weight = max_update_norm, weight
        self.norms: dict[str, float] = {}
        """The norm of each client's last update, at most the bound at that time."""
        self.seen = 0
        """Number of updates with a norm above 0."""

    def report(self, content: RecordDict, order: Order) -> Report:
        """Return the report if it answers this order; raise `Dropped` otherwise."""
        try:
            report = Report.read(content)
        except ProtocolError as error:
            raise Dropped(str(error)) from None
        for field in ("client", "round", "lane"):
            reported, ordered = getattr(report, field), getattr(order, field)
            if reported != ordered:
                raise Dropped(f"the report is for {field} {reported!r}, the order was for {field} {ordered!r}")
        return report

    def check(self, content: RecordDict, report: Report, model: Mapping[str, NDArray[Any]], size: float) -> None:
        """Raise `Dropped` unless the update may enter the model; ``size`` is the size in its client's introduction."""
        if report.status != TRAINED:
            raise Dropped(f"{report.status}: {report.reason}")
        arrays, metrics = content.get(ARRAYS), content.get(METRICS)
        if not isinstance(arrays, ArrayRecord) or len(content.array_records) != 1:
            raise Dropped(f"the reply must have exactly one ArrayRecord, {ARRAYS!r}")
        if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
            raise Dropped(f"the reply must have exactly one MetricRecord, {METRICS!r}")
        limit = MAX_EXAMPLES_PER_RECORD * size
        for key in dict.fromkeys((WEIGHT, self.weight)):
            weight = metrics.get(key)
            if type(weight) not in (int, float) or not 0 < weight <= limit:  # type: ignore[operator]
                raise Dropped(f"{key} must be above 0 and at most {limit:g}, got {weight!r}")
        norm, bound = _distance(arrays, model), self.bound(model)
        if norm > 0:
            self.norms[report.client] = min(norm, bound)
            self.seen += 1
        if norm > bound:
            raise Dropped(f"the update's norm {norm:.4g} is above {bound:.4g}")

    def bound(self, model: Mapping[str, NDArray[Any]]) -> float:
        """Return the largest norm that an update may have now."""
        if self.max_update_norm is not None:
            return self.max_update_norm
        if self.seen < MIN_UPDATES:
            weights = sum(array.size for array in model.values())
            return FACTOR * (math.sqrt(sum(_square(array) for array in model.values())) + math.sqrt(weights))
        return FACTOR * float(np.median(list(self.norms.values())))


def has_weight(content: RecordDict, key: str = WEIGHT) -> bool:
    """Return whether an evaluation has exactly one MetricRecord, with a usable weight."""
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
        return False
    weight = metrics.get(key)
    return _is_number(weight) and 0 < weight <= LARGEST  # type: ignore[operator]


def keep_common_metrics(contents: list[RecordDict]) -> None:
    """Keep in every MetricRecord only the metrics that all replies have as finite numbers.

    Flower refuses all replies if their metrics differ.
    """
    records = [content.metric_records[METRICS] for content in contents]
    common = set.intersection(*(set(record) for record in records)) if records else set()
    usable = sorted(key for key in common if all(_is_number(record[key]) for record in records))
    for content, record in zip(contents, records, strict=True):
        content[METRICS] = MetricRecord({key: record[key] for key in usable})


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _distance(arrays: ArrayRecord, model: Mapping[str, NDArray[Any]]) -> float:
    """Return |update - model|; raise `Dropped` if names, shapes, types or values do not fit."""
    if set(arrays) != set(model):
        missing, extra = sorted(set(model) - set(arrays)), sorted(set(arrays) - set(model))
        names = f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(extra)[:200] or 'none'}"
        raise Dropped(f"the arrays do not match the model ({names})")
    square = 0.0
    for name, expected in model.items():
        claimed = tuple(arrays[name].shape), str(arrays[name].dtype)
        if claimed != (expected.shape, str(expected.dtype)):
            wanted = f"{expected.shape} of {expected.dtype}"
            raise Dropped(f"array {name!r} must be {wanted}, got {claimed[0]} of {claimed[1]}")
        try:
            array = arrays[name].numpy()
        except Exception as error:  # a node may send anything in place of an array
            raise Dropped(f"array {name!r} cannot be read: {error}") from None
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise Dropped(f"array {name!r} is not as announced: {array.shape} of {array.dtype}")
        if not np.all(np.isfinite(array)):
            raise Dropped(f"array {name!r} is not finite")
        square += _square(array.astype(np.float64) - expected.astype(np.float64))
    return math.sqrt(square)


def _square(array: NDArray[Any]) -> float:
    flat = np.asarray(array, np.float64).ravel()
    with np.errstate(over="ignore"):
        return float(flat @ flat)
