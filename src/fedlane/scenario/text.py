"""Scenarios as text: writing TOML, parsing ``key=value``, and explaining validation errors in one line."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fedlane.validate import InputError, nearest


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Return nested plain values as TOML: a table's values first, then its sub-tables. None values are omitted."""
    values = {key: value for key, value in values.items() if value is not None}
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            table = to_toml(value, f"{prefix}{key}.")
            has_values = any(not isinstance(item, Mapping) for item in value.values())
            lines += ["", f"[{prefix}{key}]", table] if has_values else [table]
    return "\n".join(lines).strip("\n") + ("\n" if not prefix else "")


def toml_value(value: Any) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def parse_value(setting: str) -> tuple[str, Any]:
    """Parse ``key=value``; a value that is not valid TOML is a string."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise InputError(f"'{setting}' must have the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()
    return key.strip(), value


_BOUNDS = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must be a path with / or . (my.npz, ./folder), module:function,",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "missing": "must have more values",
    "too_short": "must have at least {min_length} values",
    "too_long": "must have at most {max_length} values",
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error in one line: field, bound and value, or for an unknown key the most similar one."""
    errors = error.errors()
    first = _deepest(errors)
    path = _field_path(first["loc"], model)
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{name}'{_similar_key(path, model)}"
    if first["type"] == "value_error":
        return ".".join([*path, str(first["ctx"]["error"])])
    bound = _BOUNDS.get(first["type"], first["msg"][:1].lower() + first["msg"][1:]).format(**first.get("ctx", {}))
    alternatives = [e for e in errors if e["type"] == "literal_error" and _field_path(e["loc"], model) == path]
    if alternatives and first["type"] != "literal_error":
        bound += f" or {alternatives[0]['ctx']['expected']}"
    hint = nearest(str(first["input"]), re.findall(r"'([^']*)'", bound)) if "'" in bound else ""
    return f"{name} {bound}, got {_shown(first['input'])}{hint}"


def _similar_key(path: list[str], model: type[BaseModel]) -> str:
    """Suggest keys of the same name in other tables, else the most similar key of the same table."""
    keys = {f"{table}.{key}": key for table in _known_keys([], model) for key in _keys_below(table, model)}
    same = [f"'{name}'" for name, key in keys.items() if key == path[-1]]
    if same:
        return f" (did you mean {' or '.join(same)}?)"
    similar = nearest(path[-1], _known_keys(path[:-1], model))
    return similar or (nearest(path[-1], keys) if len(path) == 1 else "")


def _keys_below(table: str, model: type[BaseModel]) -> list[str]:
    annotation = model.model_fields[table].annotation
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _deepest(errors: list[Any]) -> Any:
    """Return the most specific error of a union: a violated bound rather than a wrong type."""
    path = errors[0]["loc"][:2]
    same = [e for e in errors if e["loc"][:2] == path]
    return next((e for e in same if not e["type"].endswith("_type") and e["type"] != "literal_error"), same[0])


def _field_path(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the path of a field, without the union members that pydantic appends."""
    path: list[str] = []
    current: Any = model
    for part in location:
        if current is None:
            break
        path.append(str(part))
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            annotation = current.model_fields[str(part)].annotation
            nested = isinstance(annotation, type) and issubclass(annotation, BaseModel)
            current = annotation if nested else (dict if part == "policies" else None)
        elif len(path) == 3:  # policies.NAME.KEY
            break
    return path


def _known_keys(path: list[str], model: type[BaseModel]) -> list[str]:
    current: Any = model
    for part in path:
        current = current.model_fields[part].annotation
    return list(current.model_fields)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return f"'{value}'" if isinstance(value, str) else str(value)
