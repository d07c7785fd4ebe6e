"""The arrays that a Flower strategy keeps between rounds, such as FedAdam's moments: saved, restored and corrected."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedlane.validate import InputError

Model = Mapping[str, NDArray[Any]]


class StrategyArrays:
    """The attributes of a strategy, and of the strategies that it wraps itself, as far as they hold arrays."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner

    def copy(self) -> list[tuple[Strategy, dict[str, Any]]]:
        """Return a copy of all attributes, for `put_back`."""
        return [(layer, {name: _copied(value) for name, value in vars(layer).items()}) for layer in _layers(self.inner)]

    def put_back(self, copies: list[tuple[Strategy, dict[str, Any]]]) -> None:
        """Give the attributes the values that they had at the time of `copy`, which can be put back again."""
        for layer, attributes in copies:
            vars(layer).update({name: _copied(value) for name, value in attributes.items()})

    def replace_model(self, old: Model, new: Model) -> None:
        """Replace a model that the strategy keeps as its own, in any attribute, by the one that was adopted instead."""
        for layer in _layers(self.inner):
            for name, value in vars(layer).items():
                if _same(value, old):
                    setattr(layer, name, _like(value, new))

    def memory(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the strategy keeps between rounds, by attribute and key."""
        arrays: dict[str, NDArray[Any]] = {}
        for attribute, value in vars(self.inner).items():
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            pairs = list(items)
            if pairs and all(isinstance(array, np.ndarray) for _, array in pairs):
                kind = "dict" if isinstance(value, dict) else "list"
                arrays.update({f"{attribute}/{kind}/{key}": array for key, array in pairs})
        return arrays

    def restore(self, memory: Mapping[str, NDArray[Any]]) -> None:
        """Replace the strategy's arrays with those that `memory` returned.

        Raises:
            InputError: A name or an array cannot be one of those: nothing else of a strategy can be replaced.
        """
        by_attribute: dict[str, dict[str, NDArray[Any]]] = {}
        kinds: dict[str, str] = {}
        for name, array in memory.items():
            attribute, kind, key = [*name.split("/", 2), "", ""][:3]
            kept = vars(self.inner).get(attribute)
            if kind not in ("dict", "list") or hasattr(type(self.inner), attribute) or not _replaceable(kept):
                raise InputError(f"the strategy keeps no arrays {name!r}")
            if array.dtype.kind not in "fiu" or not np.all(np.isfinite(array)):
                raise InputError(f"the strategy's array {name!r} must have finite numbers")
            kinds[attribute] = kind
            by_attribute.setdefault(attribute, {})[key] = array
        for attribute, arrays in by_attribute.items():
            setattr(self.inner, attribute, arrays if kinds[attribute] == "dict" else list(arrays.values()))


def to_model(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Convert a Flower record to NumPy arrays by name."""
    return {name: array.numpy() for name, array in arrays.items()}


def to_arrays(model: Model) -> ArrayRecord:
    """Convert NumPy arrays by name to a Flower record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in model.items()})


def _layers(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and those that it wraps, as Flower's strategies with server-side noise do."""
    layers = [strategy]
    for layer in layers:
        layers += [value for value in vars(layer).values() if isinstance(value, Strategy) and value not in layers]
    return layers


def _replaceable(value: Any) -> bool:
    return value is None or isinstance(value, dict | list)


def _copied(value: Any) -> Any:
    """Copy a container of arrays, which a strategy may change in place; return anything else as it is."""
    if isinstance(value, ArrayRecord):
        return ArrayRecord(dict(value))
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _same(value: Any, model: Model) -> bool:
    """Return whether an attribute holds exactly this model: as a record, or as arrays by name or in order."""
    if isinstance(value, list):
        value = dict(zip(model, value, strict=False)) if len(value) == len(model) else None
    if not isinstance(value, dict | ArrayRecord) or set(value) != set(model):
        return False
    arrays = {name: item.numpy() if isinstance(item, Array) else item for name, item in value.items()}
    return all(isinstance(arrays[name], np.ndarray) and np.array_equal(arrays[name], model[name]) for name in model)


def _like(value: Any, model: Model) -> Any:
    """Return a model in the form in which an attribute holds one."""
    if isinstance(value, ArrayRecord):
        return to_arrays(model)
    copies = {name: array.copy() for name, array in model.items()}
    return list(copies.values()) if isinstance(value, list) else copies
