"""What a reply must be before it may enter the model. Whatever it is not, is one line of reason, never an error.

The update's norm: no update may move the model further than ``max_update_norm``. Where the operator gives none, the
bound is 10 times the median over clients of their last norms, and until 5 updates were seen 10 (|model| + sqrt(d)) with
d weights: ten times the model and another 10 for each weight, which no training of a few steps reaches. Every client
has one vote. An update that is too long counts as long as the bound, so that the bound follows when all updates grow;
one that moves nothing does not count. It stops accidents and the crude, not half of the clients or more that move
together, for which Flower's robust aggregations are there.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedlane.flower.protocol import MOST, TRAINED, Order, ProtocolError, Report
from fedlane.validate import InputError, positive

FACTOR, KNOWN = 10.0, 5
ARRAYS, METRICS, WEIGHT = "arrays", "metrics", "num-examples"
"""The keys of Flower's own strategies."""
MOST_TIMES_SIZE = 10.0
"""A client may not claim more examples than so many times the size it was introduced with."""


class Dropped(InputError):
    """Why a reply is not used."""


class Guard:
    """Checks replies against the model they answer, and remembers how far each client's last update moved it."""

    def __init__(self, max_update_norm: float | None = None, weight: str = WEIGHT) -> None:
        """weight: the key by which the aggregation weighs, if it is another than Flower's own."""
        if max_update_norm is not None:
            positive("max_update_norm", max_update_norm)
        self.max_update_norm, self.weight = max_update_norm, weight
        self.norms: dict[str, float] = {}
        """Each client's last norm, at most the bound that it met."""
        self.seen = 0
        """Updates that had a norm."""

    def report(self, content: RecordDict, order: Order) -> Report:
        """The report, if it answers this order; `Dropped` otherwise."""
        try:
            report = Report.read(content)
        except ProtocolError as error:
            raise Dropped(str(error)) from None
        for field in ("client", "round", "lane"):
            said, meant = getattr(report, field), getattr(order, field)
            if said != meant:
                raise Dropped(f"the report is of {field} {said!r}, the order was of {field} {meant!r}")
        return report

    def check(self, content: RecordDict, report: Report, model: Mapping[str, NDArray[Any]], size: float) -> None:
        """Let an update in, or raise `Dropped`; ``size`` is what its client was introduced with."""
        if report.status != TRAINED:
            raise Dropped(f"{report.status}: {report.reason}")
        arrays, metrics = content.get(ARRAYS), content.get(METRICS)
        if not isinstance(arrays, ArrayRecord) or len(content.array_records) != 1:
            raise Dropped(f"it must carry one ArrayRecord, {ARRAYS!r}")
        if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
            raise Dropped(f"it must carry one MetricRecord, {METRICS!r}")
        for key in dict.fromkeys((WEIGHT, self.weight)):
            weight = metrics.get(key)
            if type(weight) not in (int, float) or not 0 < weight <= MOST_TIMES_SIZE * size:  # type: ignore[operator]
                raise Dropped(f"{key} must be above 0 and at most {MOST_TIMES_SIZE * size:g}, got {weight!r}")
        norm, bound = _distance(arrays, model), self.bound(model)
        if norm > 0:
            self.norms[report.client] = min(norm, bound)
            self.seen += 1
        if norm > bound:
            raise Dropped(f"the update's norm {norm:.4g} is above {bound:.4g}")

    def bound(self, model: Mapping[str, NDArray[Any]]) -> float:
        """The largest norm that an update may have now."""
        if self.max_update_norm is not None:
            return self.max_update_norm
        if self.seen < KNOWN:
            weights = sum(array.size for array in model.values())
            return FACTOR * (math.sqrt(sum(_square(array) for array in model.values())) + math.sqrt(weights))
        return FACTOR * float(np.median(list(self.norms.values())))


def weighed(content: RecordDict, key: str = WEIGHT) -> bool:
    """Whether an evaluation carries one MetricRecord with a weight that an average can take."""
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
        return False
    weight = metrics.get(key)
    return _is_number(weight) and 0 < weight <= MOST  # type: ignore[operator]


def aligned(contents: list[RecordDict]) -> None:
    """Leave in every MetricRecord only what all have, as single finite numbers: Flower refuses them all otherwise."""
    records = [content.metric_records[METRICS] for content in contents]
    common = set.intersection(*(set(record) for record in records)) if records else set()
    plain = sorted(key for key in common if all(_is_number(record[key]) for record in records))
    for content, record in zip(contents, records, strict=True):
        content[METRICS] = MetricRecord({key: record[key] for key in plain})


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _distance(arrays: ArrayRecord, model: Mapping[str, NDArray[Any]]) -> float:
    """|update - model|, after names, shapes, types and values were found in order."""
    if set(arrays) != set(model):
        missing, more = sorted(set(model) - set(arrays)), sorted(set(arrays) - set(model))
        raise Dropped(f"arrays are missing ({', '.join(missing) or 'none'}) or too many ({', '.join(more)[:200]})")
    square = 0.0
    for name, mine in model.items():
        claimed = tuple(arrays[name].shape), str(arrays[name].dtype)
        if claimed != (mine.shape, str(mine.dtype)):
            raise Dropped(f"array {name!r} must be {mine.shape} of {mine.dtype}, got {claimed[0]} of {claimed[1]}")
        try:
            theirs = arrays[name].numpy()
        except Exception as error:  # whatever was sent in place of an array
            raise Dropped(f"array {name!r} cannot be read: {error}") from None
        if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
            raise Dropped(f"array {name!r} is not what it claims: {theirs.shape} of {theirs.dtype}")
        if not np.all(np.isfinite(theirs)):
            raise Dropped(f"array {name!r} is not finite")
        square += _square(theirs.astype(np.float64) - mine.astype(np.float64))
    return math.sqrt(square)


def _square(array: NDArray[Any]) -> float:
    flat = np.asarray(array, np.float64).ravel()
    with np.errstate(over="ignore"):
        return float(flat @ flat)
