"""Any strategy of Flower's as FedLane's aggregation: what it puts into messages, and what it makes of the replies."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedlane.flower.server.guard import ARRAYS, WEIGHT, aligned, weighed
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")

Model = Mapping[str, NDArray[Any]]


class _Nodes:
    """A grid on which only these nodes are seen: a strategy samples from them."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self.node_ids = node_ids

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_ids)


class Aggregation:
    """The wrapped strategy. What it raises ends no round: the model then stays as it was."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.weight = str(getattr(inner, "weighted_by_key", WEIGHT))
        """The key in a reply's metrics by which the strategy weighs it."""

    def content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """What the strategy would send to a node: the model, and its own settings (such as FedProx's mu)."""
        seats = range(
            1, 2 + max(self._least("train"), 1)
        )  # it may insist on a number of nodes; the policy chooses them
        flower = logging.getLogger("flwr")
        flower.addFilter(_says_nothing_of_samples)  # its line on how many nodes it sampled is not true here
        try:
            messages = list(self.inner.configure_train(server_round, arrays, _copy(config), _grid(seats)))
        finally:
            flower.removeFilter(_says_nothing_of_samples)
        if not messages or not isinstance(messages[0].content.get(ARRAYS), ArrayRecord):
            raise InputError(
                f"{type(self.inner).__name__} must send the model under the key {ARRAYS!r} (fraction_train above 0)"
            )
        return messages[0].content

    def aggregate(self, server_round: int, replies: Sequence[Message], model: Model) -> "Aggregated":
        """The new model from replies that passed the guard, in the old one's types; no arrays where there is none."""
        if not replies:
            return Aggregated()
        aligned([reply.content for reply in replies])
        try:
            arrays, metrics = self.inner.aggregate_train(server_round, replies)
            if arrays is None:
                return Aggregated(None, metrics)
            made = {name: arrays[name].numpy() for name in model}
            sound = all(
                made[name].shape == old.shape and np.all(np.isfinite(made[name])) for name, old in model.items()
            )
        except Exception as error:  # a strategy may fail in any way; the federation goes on with the model it has
            logger.error("round %d: %s failed to aggregate: %s", server_round - 1, type(self.inner).__name__, error)
            return Aggregated()
        if not sound:
            logger.error("round %d: the aggregated model is not finite or of another shape", server_round - 1)
            return Aggregated()
        return Aggregated(to_arrays({name: _as_type(made[name], old.dtype) for name, old in model.items()}), metrics)

    def evaluation(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Sequence[int], ttl_s: float
    ) -> list[Message]:
        """The strategy's own calls for evaluation, if it asks for any and has enough nodes."""
        if len(nodes) < self._least("evaluate"):  # it would wait for more, without end
            logger.warning("round %d: too few nodes are free to evaluate the model", server_round - 1)
            return []
        messages = self.inner.configure_evaluate(server_round, arrays, _copy(config), _grid(nodes))
        return [
            Message(m.content, dst_node_id=m.metadata.dst_node_id, message_type=MessageType.EVALUATE, ttl=ttl_s)
            for m in messages
        ]

    def evaluated(self, server_round: int, replies: Sequence[Message]) -> MetricRecord | None:
        """The strategy's own average of what nodes measured; one that says nonsense does not spoil the others'."""
        sound = [reply for reply in replies if weighed(reply.content, self.weight)]
        aligned([reply.content for reply in sound])
        try:
            return self.inner.aggregate_evaluate(server_round, sound) if sound else None
        except Exception as error:
            logger.error("round %d: %s failed to evaluate: %s", server_round - 1, type(self.inner).__name__, error)
            return None

    def memory(self) -> dict[str, NDArray[Any]]:
        """Arrays that the strategy keeps between rounds, such as FedAdam's moments, by attribute and key."""
        kept: dict[str, NDArray[Any]] = {}
        for attribute, value in vars(self.inner).items():
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            pairs = list(items)
            if pairs and all(isinstance(array, np.ndarray) for _, array in pairs):
                kind = "dict" if isinstance(value, dict) else "list"
                kept.update({f"{attribute}/{kind}/{key}": array for key, array in pairs})
        return kept

    def restore(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Give the strategy back what `memory` took, in place of what it holds."""
        taken: dict[str, dict[str, NDArray[Any]]] = {}
        kinds: dict[str, str] = {}
        for name, array in memory.items():
            attribute, kinds[attribute], key = name.split("/", 2)
            taken.setdefault(attribute, {})[key] = array
        for attribute, arrays in taken.items():
            setattr(self.inner, attribute, arrays if kinds[attribute] == "dict" else list(arrays.values()))

    def _least(self, stage: str) -> int:
        if getattr(self.inner, f"fraction_{stage}", 1.0) == 0:
            return 0
        return max(int(getattr(self.inner, name, 0)) for name in ("min_available_nodes", f"min_{stage}_nodes"))


class Aggregated:
    """What came of a round's replies."""

    def __init__(self, arrays: ArrayRecord | None = None, metrics: MetricRecord | None = None) -> None:
        self.arrays, self.metrics = arrays, metrics


def to_model(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in arrays.items()}


def to_arrays(model: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in model.items()})


def _as_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An average of whole numbers (a batch norm's counter) is rounded to one."""
    return np.asarray(np.rint(array) if np.issubdtype(dtype, np.integer) else array).astype(dtype)


def _says_nothing_of_samples(line: logging.LogRecord) -> bool:
    return "Sampled" not in str(line.msg)


def _copy(config: ConfigRecord) -> ConfigRecord:
    return ConfigRecord(dict(config))


def _grid(nodes: Sequence[int]) -> Grid:
    return cast(Grid, _Nodes(nodes))
