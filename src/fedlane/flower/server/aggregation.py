"""Aggregation by any Flower strategy: the content of its messages, and its handling of the replies."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedlane.flower.server.guard import ARRAYS, WEIGHT, has_weight, keep_common_metrics
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")

Model = Mapping[str, NDArray[Any]]


class _Nodes:
    """A grid that has only the given nodes, for a strategy to sample from."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self.node_ids = node_ids

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_ids)


class Aggregation:
    """The wrapped strategy. If it fails, the round continues with the unchanged model."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
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

    def aggregate(self, server_round: int, replies: Sequence[Message], model: Model) -> "Aggregated":
        """Return the new model, in the old types, from replies that passed the guard; no arrays without replies."""
        if not replies:
            return Aggregated()
        keep_common_metrics([reply.content for reply in replies])
        try:
            arrays, metrics = self.inner.aggregate_train(server_round, replies)
            if arrays is None:
                return Aggregated(None, metrics)
            new = {name: arrays[name].numpy() for name in model}
            usable = all(new[name].shape == old.shape and np.all(np.isfinite(new[name])) for name, old in model.items())
        except Exception as error:  # a strategy may fail in any way; the federation continues with the old model
            logger.error("round %d: %s failed to aggregate: %s", server_round - 1, type(self.inner).__name__, error)
            return Aggregated()
        if not usable:
            logger.error("round %d: the aggregated model is not finite or has another shape", server_round - 1)
            return Aggregated()
        return Aggregated(to_arrays({name: _as_type(new[name], old.dtype) for name, old in model.items()}), metrics)

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
        """Return the strategy's average of the nodes' metrics, without replies whose weight is unusable."""
        usable = [reply for reply in replies if has_weight(reply.content, self.weight)]
        keep_common_metrics([reply.content for reply in usable])
        try:
            return self.inner.aggregate_evaluate(server_round, usable) if usable else None
        except Exception as error:
            logger.error("round %d: %s failed to evaluate: %s", server_round - 1, type(self.inner).__name__, error)
            return None

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the strategy keeps between rounds, such as FedAdam's moments, by attribute and key."""
        arrays: dict[str, NDArray[Any]] = {}
        for attribute, value in vars(self.inner).items():
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            pairs = list(items)
            if pairs and all(isinstance(array, np.ndarray) for _, array in pairs):
                kind = "dict" if isinstance(value, dict) else "list"
                arrays.update({f"{attribute}/{kind}/{key}": array for key, array in pairs})
        return arrays

    def restore(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Replace the strategy's arrays with those that `memory` returned."""
        by_attribute: dict[str, dict[str, NDArray[Any]]] = {}
        kinds: dict[str, str] = {}
        for name, array in memory.items():
            attribute, kinds[attribute], key = name.split("/", 2)
            by_attribute.setdefault(attribute, {})[key] = array
        for attribute, arrays in by_attribute.items():
            setattr(self.inner, attribute, arrays if kinds[attribute] == "dict" else list(arrays.values()))

    def _min_nodes(self, stage: str) -> int:
        if getattr(self.inner, f"fraction_{stage}", 1.0) == 0:
            return 0
        return max(int(getattr(self.inner, name, 0)) for name in ("min_available_nodes", f"min_{stage}_nodes"))


class Aggregated:
    """The aggregated model and metrics of a round; None if absent."""

    def __init__(self, arrays: ArrayRecord | None = None, metrics: MetricRecord | None = None) -> None:
        self.arrays, self.metrics = arrays, metrics


def to_model(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Convert a Flower record to NumPy arrays by name."""
    return {name: array.numpy() for name, array in arrays.items()}


def to_arrays(model: Model) -> ArrayRecord:
    """Convert NumPy arrays by name to a Flower record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in model.items()})


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert an aggregated array; averages of integers, such as a batch norm's counter, are rounded."""
    return np.asarray(np.rint(array) if np.issubdtype(dtype, np.integer) else array).astype(dtype)


def _not_about_sampling(record: logging.LogRecord) -> bool:
    return "Sampled" not in str(record.msg)


def _copy(config: ConfigRecord) -> ConfigRecord:
    return ConfigRecord(dict(config))


def _grid(nodes: Sequence[int]) -> Grid:
    return cast(Grid, _Nodes(nodes))
