"""The reference of scenario keys, made from the model: type, bounds, unit, default and meaning of every key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedlane.scenario import Scenario
from fedlane.scenario.text import toml_value

UNITS = {
    "m_s": "m/s",
    "mbps": "Mbit/s",
    "dbm": "dBm",
    "db": "dB",
    "hz": "Hz",
    "bits": "bit",
    "seconds": "s",
    "m": "m",
    "s": "s",
    "j": "J",
    "w": "W",
}
"""Units by the last word of a key's name. Longer endings come first."""

_NAMES = {int: "integer", float: "number", str: "string", bool: "true or false"}
_PLURALS = {"integer": "integers", "number": "numbers", "string": "strings"}


@dataclass(frozen=True)
class ScenarioKey:
    """One key of a scenario.

    Attributes:
        key: The dotted key, as ``--set`` takes it.
        type: Type of the value, in words.
        bounds: Bounds on the value, or on each value of a list; empty if there are none.
        unit: Unit of the value; empty for counts, shares and names.
        default: Default value in TOML; empty if the key is unset by default.
        meaning: What the key sets.
    """

    key: str
    type: str
    bounds: str
    unit: str
    default: str
    meaning: str


def scenario_keys() -> list[ScenarioKey]:
    """Return all keys of a scenario, in the order of the model.

    Examples:
        >>> [key for key in scenario_keys() if key.key == "network.deadline_s"]
        [ScenarioKey(key='network.deadline_s', type='number', bounds='greater than 0', unit='s', default='5.0', \
meaning='Deadline of a round, in seconds.')]
    """
    return list(_keys(Scenario, ""))


def section_meaning(section: str) -> str:
    """Return the first paragraph of the documentation of a section, such as ``network``."""
    annotation = Scenario.model_fields[section].annotation
    return " ".join((annotation.__doc__ or "").strip().split("\n\n")[0].split())


def _keys(model: type[BaseModel], prefix: str) -> Iterator[ScenarioKey]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _keys(annotation, f"{prefix}{name}.")
        elif get_origin(annotation) is dict:  # policies
            yield ScenarioKey(f"{prefix}{name}.NAME.KEY", "string, number or boolean", "", "", "", _meaning(field))
        else:
            bounds = list(dict.fromkeys(_bounds(annotation, field.metadata)))
            unit = next((unit for ending, unit in UNITS.items() if f"_{name}".endswith(f"_{ending}")), "")
            default = "" if field.default is None else toml_value(field.default)
            yield ScenarioKey(prefix + name, _type(annotation), "; ".join(bounds), unit, default, _meaning(field))


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _type(annotation: Any) -> str:
    """Return a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return _either(toml_value(value) for value in arguments)
    if origin in (Union, UnionType):
        return _either(_type(member) for member in arguments if member is not NoneType)
    if origin is tuple:
        items = _type(arguments[0])
        if arguments[-1] is not Ellipsis:
            return f"list of {len(arguments)} {_PLURALS.get(items, items)}"
        return f"list of {_PLURALS.get(items, items.replace('list', 'lists', 1))}"
    return _NAMES[annotation]


def _bounds(annotation: Any, metadata: Any = ()) -> Iterator[str]:
    """Yield the bounds on a value, or on the members of a union or list."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        annotation, *notes = arguments
        for note in notes:
            metadata = (*metadata, *(note.metadata if isinstance(note, FieldInfo) else (note,)))
        yield from _bounds(annotation, metadata)
        return
    low = next((note for note in metadata if isinstance(note, Ge | Gt)), None)
    high = next((note for note in metadata if isinstance(note, Le | Lt)), None)
    if isinstance(low, Ge) and isinstance(high, Le):
        yield f"{_plain(low.ge)} to {_plain(high.le)}"
    elif low or high:
        lower = f"at least {_plain(low.ge)}" if isinstance(low, Ge) else f"greater than {_plain(low.gt)}" if low else ""
        upper = f"at most {_plain(high.le)}" if isinstance(high, Le) else f"less than {_plain(high.lt)}" if high else ""
        yield ", ".join(filter(None, (lower, upper)))
    if origin in (Union, UnionType, tuple):
        for member in arguments:
            if member is not Ellipsis:
                yield from _bounds(member)


def _plain(bound: Any) -> str:
    return "2^31 - 1" if bound == 2**31 - 1 else f"{bound:g}".replace("e+0", "e").replace("e+", "e")


def _either(alternatives: Iterable[str]) -> str:
    *others, last = dict.fromkeys(alternatives)
    return f"{', '.join(others)} or {last}" if others else last
