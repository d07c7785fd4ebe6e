"""Nested lists and dictionaries with one value replaced: what a stranger's JSON may hold."""


def places(values, path=()):
    """Yield the path of every value and of every table, the whole first."""
    yield path
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def replaced(values, path, new):
    """Return a copy with the value at ``path`` replaced; the values themselves stay as they are."""
    if not path:
        return new
    copied = dict(values) if isinstance(values, dict) else list(values)
    copied[path[0]] = replaced(values[path[0]], path[1:], new)
    return copied
