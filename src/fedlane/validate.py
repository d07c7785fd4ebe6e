"""Checks of user input. Each error is one line that names the field, the value and the bound."""

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedlane.records import FloatArray

LARGEST_WEIGHT = 1e3
"""Largest weight of a global model that clients accept. Trained weights are a few units; from about 1e6, gradient norms
may overflow."""


SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-6, 1e12
"""Range of clip norms. In float32, squares of gradients near smaller norms underflow, and near larger ones overflow."""


class InputError(ValueError):
    """Invalid user input. The message is one line; the command line prints it and exits with status 2."""


class PublicError(InputError):
    """Invalid input whose text a client may send to its server.

    The public text is written by FedLane, from facts that are not secret: the server's own message, counts, the names
    of client, federation and data set, the name of a file without its folder. It never contains the text of another
    error.

    Args:
        public: What the server may see.
        detail: What follows it in the client's own log and on its terminal.

    Examples:
        >>> error = PublicError("cannot switch to lane 2", ": no modem at /dev/ttyUSB0")
        >>> error.public
        'cannot switch to lane 2'
    """

    def __init__(self, public: str, detail: str = "") -> None:
        super().__init__(public + detail)
        self.public, self.detail = public, detail


class ScenarioWarning(UserWarning):
    """A remark on a scenario whose values may not mean what its author expects. Commands print it as a note."""


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error, at most 200 printable characters; the name of its type without text."""
    text: str = printable((str(error).strip().splitlines() or [""])[0][:200])
    return text or type(error).__name__


def printable(value: Any) -> Any:
    """Return plain values that a foreign file may have filled, with unprintable characters in all texts replaced.

    A terminal obeys control characters: a name could move the cursor, rewrite what was printed, or hide itself.

    Args:
        value: A text, number or None, or lists and dictionaries of them.
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known word closest to ``word``, or an empty string.

    Capital letters are compared like small ones.
    """
    words = {name.casefold(): name for name in known}
    matches = difflib.get_close_matches(word.casefold(), list(words), n=1, cutoff=0.5)
    return f" (did you mean '{words[matches[0]]}'?)" if matches else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name."""
    names = sorted(known)
    return InputError(f"unknown {kind} '{word}'{nearest(word, names) or ': choose from ' + ', '.join(names)}")


def missing_extra(user: str, extra: str) -> InputError:
    """Return the error for an optional package that is not installed.

    Args:
        user: What needs the package, as the user named it.
        extra: The extra of FedLane that installs the package.
    """
    return InputError(f"{user} needs the extra {extra}: pip install 'fedlane[{extra}]'")


def at_least(field: str, value: float, bound: float) -> None:
    """Raise InputError unless ``value`` is at least ``bound``."""
    if not value >= bound:
        raise InputError(f"{field} must be at least {bound:g}, got {value}")


def positive(field: str, value: float) -> None:
    """Raise InputError unless ``value`` is greater than 0."""
    if not value > 0:
        raise InputError(f"{field} must be greater than 0, got {value}")


def check_clip_norm(field: str, value: float) -> None:
    """Raise InputError unless ``value`` is a clip norm that float32 can enforce."""
    if not SMALLEST_CLIP_NORM <= value <= LARGEST_CLIP_NORM:
        raise InputError(f"{field} must be from {SMALLEST_CLIP_NORM:g} to {LARGEST_CLIP_NORM:g}, got {value:g}")


def check_proximal(proximal: float, learning_rate: float) -> None:
    """Refuse a proximal term that would move a step beyond the global model.

    Raises:
        InputError: The product of both is greater than 1.
    """
    if proximal * learning_rate > 1:
        raise InputError(
            f"learning.proximal times learning.learning_rate must be at most 1, got {proximal * learning_rate:g}: "
            "the proximal term would overshoot the global model"
        )


def matrix(field: str, value: object, dimensions: int) -> FloatArray:
    """Return ``value`` as a contiguous float array; raise InputError if it has fewer axes or contains NaN."""
    array = np.ascontiguousarray(value, dtype=np.float64)
    if array.ndim < dimensions:
        raise InputError(f"{field} must have at least {dimensions} axes, got shape {array.shape}")
    if array.size and np.isnan(array.min()):
        raise InputError(
            f"{field} must not contain NaN, first at {tuple(int(k) for k in np.argwhere(np.isnan(array))[0])}"
        )
    return array
