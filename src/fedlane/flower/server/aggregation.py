"""Aggregation by any Flower strategy: the content of its messages, and its handling of the replies."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedlane.flower.protocol import KEY
from fedlane.flower.server.guard import ARRAYS
from fedlane.flower.server.metrics import METRICS, WEIGHT, common_metrics, evaluations
from fedlane.flower.server.strategy_arrays import Model, StrategyArrays, to_arrays, to_model
from fedlane.flower.server.update_bounds import float_arrays
from fedlane.validate import LARGEST_WEIGHT, InputError

logger = logging.getLogger("fedlane.flower")


class _Nodes:
    """A grid that has only the given nodes, for a strategy to sample from."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self.node_ids = node_ids

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_ids)


@dataclass(frozen=True)
class Aggregated:
    """The aggregated model and metrics of a round; None if absent."""

    arrays: ArrayRecord | None = None
    metrics: MetricRecord | None = None
    left_out: tuple[str, ...] = ()
    """The clients whose updates the strategy could not use."""


@dataclass(frozen=True, eq=False)
class _Update:
    """An accepted reply with its content, of which a strategy gets a copy: some empty the records that they read."""

    message: Message
    content: RecordDict

    @property
    def client(self) -> str:
        """The name of the client, which the guard has checked."""
        return str(self.content.config_records[KEY]["client"]) if KEY in self.content else "?"

    def with_metrics(self, metrics: MetricRecord) -> Message:
        """Return the message with a copy of its records and with other metrics."""
        records = {name: ArrayRecord(dict(record)) for name, record in self.content.array_records.items()}
        configs = {name: _copy(record) for name, record in self.content.config_records.items()}
        self.message.content = RecordDict({**configs, **records, METRICS: metrics})
        return self.message


@dataclass(frozen=True)
class _Attempt:
    """What a strategy made of some updates."""

    model: Model | None = None
    """None if the strategy did not aggregate."""
    metrics: MetricRecord | None = None
    failure: str = ""
    """Why the result cannot be used."""


class Aggregation:
    """The wrapped strategy, protected from updates on which it fails.

    - If the strategy fails on a round's updates, or its model is not finite, the updates on which it fails alone are
      left out; if that does not help, one of the updates is. Otherwise the round continues with the unchanged model.
    - Weights stay within half of the range that clients accept (or where they began): at the edge of the range every
      noisy update of an honest client would leave it. A weight that the strategy moves further, for example because
      its momentum carries it on, is set back to that limit, also in the model that the strategy itself keeps.
    """

    def __init__(self, inner: Strategy, max_weight: float = LARGEST_WEIGHT) -> None:
        self.inner, self.max_weight = inner, max_weight
        self.kept = StrategyArrays(inner)
        """The arrays that the strategy keeps between rounds."""
        self.weight = str(getattr(inner, "weighted_by_key", WEIGHT))
        """The key of the metric by which the strategy weights a reply."""

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return the content that the strategy sends to a node: the model, and settings such as the mu of FedProx."""
        nodes = range(
            1, 2 + max(self._min_nodes("train"), 1)
        )  # enough for the strategy; the policy chooses the real ones
        flower = logging.getLogger("flwr")
        flower.addFilter(_not_about_sampling)  # the number of sampled nodes that it logs is not the real one
        try:
            messages = list(self.inner.configure_train(server_round, arrays, _copy(config), _grid(nodes)))
        finally:
            flower.removeFilter(_not_about_sampling)
        if not messages or not isinstance(messages[0].content.get(ARRAYS), ArrayRecord):
            raise InputError(
                f"{type(self.inner).__name__} must send the model under the key {ARRAYS!r} (fraction_train above 0)"
            )
        return messages[0].content

    def aggregate(self, server_round: int, replies: Sequence[Message], model: Model) -> Aggregated:
        """Return the new model, in the types of the old one, from replies that passed the guard; no arrays if none.

        A strategy whose model is not used gets back the arrays that it kept before the round.
        """
        if not replies:
            return Aggregated()
        updates, left_out = [_Update(reply, reply.content) for reply in replies], list[_Update]()
        attempt = self._attempt(server_round, updates, model)
        if attempt.failure:
            name = type(self.inner).__name__
            logger.error("round %d: %s failed to aggregate: %s", server_round - 1, name, attempt.failure)
            for left_out in self._suspects(server_round, updates, model):
                rest = [update for update in updates if update not in left_out]
                attempt = self._attempt(server_round, rest, model)
                if not attempt.failure:
                    names = ", ".join(update.client for update in left_out)
                    logger.warning("round %d: the updates of %s are left out", server_round - 1, names)
                    break
            else:
                return Aggregated()
        blamed = tuple(update.client for update in left_out)
        if attempt.model is None:
            return Aggregated(None, attempt.metrics, blamed)
        held = self._held(server_round, attempt.model, updates, model)
        return Aggregated(to_arrays(held), attempt.metrics, blamed)

    def _attempt(self, server_round: int, updates: Sequence[_Update], model: Model) -> _Attempt:
        """Let the strategy aggregate; if the result cannot be used, it gets back the arrays that it kept before."""
        before = self.kept.copy()
        try:
            metrics = common_metrics([update.content for update in updates])
            messages = [update.with_metrics(record) for update, record in zip(updates, metrics, strict=True)]
            arrays, aggregated = self.inner.aggregate_train(server_round, messages)
            new = None if arrays is None else {name: np.asarray(arrays[name].numpy()) for name in model}
            failure = "" if new is None else _why_unusable(new, model)
        except Exception as error:  # a strategy may fail in any way; the federation continues with the old model
            new, aggregated, failure = None, None, str(error) or type(error).__name__
        if failure:
            self.kept.put_back(before)
            return _Attempt(failure=failure)
        return _Attempt(new, aggregated)

    def _suspects(self, server_round: int, updates: list[_Update], model: Model) -> Iterator[list[_Update]]:
        """Yield groups of updates without which the strategy may succeed: those on which it fails alone, then each."""
        before, alone = self.kept.copy(), []
        for update in updates:
            if self._attempt(server_round, [update], model).failure:
                alone.append(update)
            self.kept.put_back(before)
        if 0 < len(alone) < len(updates):
            yield alone
        if len(updates) > 2:
            yield from ([update] for update in updates)

    def _held(self, server_round: int, new: Model, updates: Sequence[_Update], model: Model) -> dict[str, NDArray[Any]]:
        """Return the strategy's model with its weights held within the limit, in the types of the old model."""
        limit = self.max_weight / 2
        held = {name: _within(new[name], old, limit) for name, old in model.items()}
        if any(np.any(held[name] != new[name]) for name in model):
            try:
                blamed = self._blamed(new, updates, model, limit)
            except Exception as error:  # only the log needs the name
                blamed = f"a client that cannot be named ({error})"
            text = "round %d: weights are kept within %g; largest change there by %s"
            logger.warning(text, server_round - 1, limit, blamed)
            self.kept.replace_model(new, held)
        return {name: _as_type(held[name], old.dtype) for name, old in model.items()}

    def _blamed(self, new: Model, updates: Sequence[_Update], model: Model, limit: float) -> str:
        """Return the client whose weighted update changes the weights beyond ``limit`` the most, for the log."""
        outside = {name: ~(np.abs(new[name]) <= limit) for name in float_arrays(model)}

        def change(update: _Update) -> float:
            arrays = to_model(update.content.array_records[ARRAYS])
            weight = float(update.content.metric_records[METRICS].get(self.weight, 1.0))  # type: ignore[arg-type]
            return weight * max(
                float(np.abs(arrays[name] - model[name])[where].max(initial=0.0)) for name, where in outside.items()
            )

        return max(updates, key=change).client if outside else "nobody"

    def evaluation(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], ttl_s: float
    ) -> list[Message]:
        """Return the strategy's requests for evaluation, if it has any and there are enough nodes."""
        if len(nodes) < self._min_nodes("evaluate"):  # the strategy would wait for more indefinitely
            logger.warning("round %d: too few nodes are idle to evaluate the model", server_round - 1)
            return []
        messages = self.inner.configure_evaluate(server_round, arrays, _copy(config), _grid(nodes))
        return [
            Message(m.content, dst_node_id=m.metadata.dst_node_id, message_type=MessageType.EVALUATE, ttl=ttl_s)
            for m in messages
        ]

    def evaluated(self, server_round: int, replies: Sequence[Message]) -> MetricRecord | None:
        """Return the strategy's average of the nodes' metrics (see `evaluations`); None without any."""
        usable = []
        try:
            for number, metrics in evaluations([reply.content for reply in replies], self.weight):
                replies[number].content[METRICS] = metrics
                usable.append(replies[number])
            return self.inner.aggregate_evaluate(server_round, usable) if usable else None
        except Exception as error:
            logger.error("round %d: %s failed to evaluate: %s", server_round - 1, type(self.inner).__name__, error)
            return None

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the strategy keeps between rounds, for a checkpoint."""
        return self.kept.memory()

    def restore(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Replace the strategy's arrays with those that `memory` returned."""
        self.kept.restore(memory)

    def _min_nodes(self, stage: str) -> int:
        if getattr(self.inner, f"fraction_{stage}", 1.0) == 0:
            return 0
        return max(int(getattr(self.inner, name, 0)) for name in ("min_available_nodes", f"min_{stage}_nodes"))


def _why_unusable(new: Model, old: Model) -> str:
    """Return why an aggregated model cannot be used, or an empty string."""
    if any(new[name].shape != array.shape for name, array in old.items()):
        return "the aggregated model has another shape"
    if not all(np.all(np.isfinite(array)) for array in new.values()):
        return "the aggregated model is not finite"
    return ""


def _within(new: NDArray[Any], old: NDArray[Any], limit: float) -> NDArray[Any]:
    """Return new weights clipped at the limit, or at the old weight where that is larger; counters as they are."""
    if not np.issubdtype(old.dtype, np.floating):
        return new
    largest = np.maximum(limit, np.abs(old))
    return np.clip(new, -largest, largest)


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert an aggregated array; averages of integers, such as a batch norm's counter, are rounded."""
    return np.asarray(np.rint(array) if np.issubdtype(dtype, np.integer) else array).astype(dtype)


def _not_about_sampling(record: logging.LogRecord) -> bool:
    return "Sampled" not in str(record.msg)


def _copy(config: ConfigRecord) -> ConfigRecord:
    return ConfigRecord(dict(config))


def _grid(nodes: Sequence[int]) -> Grid:
    return cast(Grid, _Nodes(nodes))
