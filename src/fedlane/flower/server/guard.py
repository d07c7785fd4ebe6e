"""The guard: checks of every reply before it may enter the model. A rejected reply yields a one-line reason.

A reply is first inspected alone: report, arrays, range of the weights, number of examples. At the end of the round all
of its updates are judged together, by the bounds on their norms (see `update_bounds`), and the claimed numbers of
examples are capped at 3 times their median over clients, so that no claim decides the average.

The guard stops accidents, crude attacks, and attacks that would make clients refuse the model. It does not stop
poisoning within the bounds, or half of the clients acting together; Flower's robust strategies are meant for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedlane.flower.protocol import TRAINED, Order, ProtocolError, Report
from fedlane.flower.server.metrics import MAX_CLAIM, METRICS, WEIGHT, lower_median
from fedlane.flower.server.update_bounds import Arrays, UpdateBounds, UpdateNorms, finite, float_arrays, norm
from fedlane.validate import LARGEST_WEIGHT, InputError, positive

ARRAYS = "arrays"
"""The key under which Flower's strategies expect the model."""
MAX_EXAMPLES_PER_RECORD = 10.0
"""A client may claim at most this many examples for each record of its introduction."""


class Dropped(InputError):
    """A reply is not used; the message states the reason."""


@dataclass(frozen=True)
class InspectedUpdate:
    """An update that is in order by itself."""

    content: RecordDict
    norms: UpdateNorms


class Guard:
    """Checks replies against the model that was sent, and remembers each client's last norms and claims."""

    def __init__(
        self, max_update_norm: float | None = None, weight: str = WEIGHT, max_weight: float = LARGEST_WEIGHT
    ) -> None:
        """``weight`` is the key of the metric by which the aggregation weights replies."""
        if max_update_norm is not None:
            positive("max_update_norm", max_update_norm)
        self.weight, self.max_weight = weight, max_weight
        self.bounds = UpdateBounds(max_update_norm)
        self.claims: dict[str, dict[str, float]] = {}
        """The last numbers of examples that each client claimed, by metric."""

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

    def inspect(self, content: RecordDict, report: Report, model: Arrays, size: float) -> InspectedUpdate:
        """Check an update alone; raise `Dropped` if it is refused. ``size`` is the size in the introduction."""
        if report.status != TRAINED:
            raise Dropped(f"{report.status}: {report.reason}")
        arrays, metrics = content.get(ARRAYS), content.get(METRICS)
        if not isinstance(arrays, ArrayRecord) or len(content.array_records) != 1:
            raise Dropped(f"the reply must have exactly one ArrayRecord, {ARRAYS!r}")
        if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
            raise Dropped(f"the reply must have exactly one MetricRecord, {METRICS!r}")
        limit = MAX_EXAMPLES_PER_RECORD * size
        for key in self._weights():
            weight = metrics.get(key)
            if type(weight) not in (int, float) or not 0 < weight <= limit:  # type: ignore[operator]
                raise Dropped(f"{key} must be above 0 and at most {limit:g}, got {weight!r}")
        return InspectedUpdate(content, self._norms(report.client, arrays, model))

    def judge(self, updates: Sequence[InspectedUpdate], model: Arrays, clients: int) -> list[str]:
        """Judge the updates of a round together: return for each why it is refused, or an empty string.

        Args:
            updates: The updates of the round; the claims of those that are not refused are capped in place.
            model: The model that was sent.
            clients: Number of clients that may send updates in this or a later round.
        """
        reasons = self.bounds.judge([update.norms for update in updates], model, clients)
        accepted = [update for update, reason in zip(updates, reasons, strict=True) if not reason]
        for update in accepted:
            metrics = update.content.metric_records[METRICS]
            self.claims[update.norms.client] = {key: float(metrics[key]) for key in self._weights()}  # type: ignore[arg-type]
        for key in self._weights():
            cap = MAX_CLAIM * lower_median([claims[key] for claims in self.claims.values() if key in claims])
            for update in accepted:
                metrics = update.content.metric_records[METRICS]
                if metrics[key] > cap:  # type: ignore[operator]
                    metrics[key] = cap
        return reasons

    def values(self) -> dict[str, Any]:
        """Return what the guard remembers as plain values, for a checkpoint."""
        return {**self.bounds.values(), "claims": self.claims}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what the guard remembers; a checkpoint of an earlier version has no claims."""
        self.bounds.restore(values)
        self.claims = {client: finite(claims) for client, claims in values.get("claims", {}).items()}

    def _weights(self) -> list[str]:
        return list(dict.fromkeys((WEIGHT, self.weight)))

    def _norms(self, client: str, arrays: ArrayRecord, model: Arrays) -> UpdateNorms:
        changes = _changes(arrays, model, self.max_weight)
        floats = [changes[name] for name in float_arrays(model)]
        return UpdateNorms(client, norm(floats), {name: norm([change]) for name, change in changes.items()})


def why_refused(model: Arrays, max_weight: float) -> str:
    """Return why clients would refuse a model, or an empty string; the rule is that of `check_global_model`."""
    floats = float_arrays(model).values()
    if not all(np.all(np.isfinite(array)) for array in floats):
        return "is not finite"
    if any(np.any(np.abs(array) > max_weight) for array in floats):
        return f"has weights above {max_weight:g}"
    return ""


def _changes(arrays: ArrayRecord, model: Arrays, max_weight: float) -> dict[str, NDArray[Any]]:
    """Return update - model by array; raise `Dropped` if names, shapes, types or values do not fit."""
    if set(arrays) != set(model):
        missing, extra = sorted(set(model) - set(arrays)), sorted(set(arrays) - set(model))
        names = f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(extra)[:200] or 'none'}"
        raise Dropped(f"the arrays do not match the model ({names})")
    changes = {}
    for name, expected in model.items():
        claimed = tuple(arrays[name].shape), str(arrays[name].dtype)
        if claimed != (expected.shape, str(expected.dtype)):
            wanted = f"{expected.shape} of {expected.dtype}"
            raise Dropped(f"array {name!r} must be {wanted}, got {claimed[0]} of {claimed[1]}")
        try:
            array = arrays[name].numpy()
        except Exception as error:  # a node may send anything in place of an array
            raise Dropped(f"array {name!r} cannot be read: {error}") from None
        if not isinstance(array, np.ndarray):  # NumPy also opens archives of arrays
            raise Dropped(f"array {name!r} cannot be read: it is a {type(array).__name__}")
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise Dropped(f"array {name!r} is not as announced: {array.shape} of {array.dtype}")
        if not np.all(np.isfinite(array)):
            raise Dropped(f"array {name!r} is not finite")
        if why_refused({name: array}, max_weight):
            raise Dropped(f"array {name!r} has weights above {max_weight:g}, which clients refuse")
        changes[name] = array.astype(np.float64) - expected.astype(np.float64)
    return changes
