"""Plain values that trackers write: a scenario's settings and a summary's measures."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from fedlane.scenario import Scenario

PER_SEED = 32
"""With more seeds than this, only the means over seeds are tracked."""


def flattened(scenario: "Scenario") -> dict[str, str | float | int | bool]:
    """Every value of a scenario by its dotted name; lists become text, unset values are left out."""

    def walk(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, Mapping):
                yield from walk(value, f"{prefix}{key}.")
            elif value is not None:
                yield prefix + key, value if isinstance(value, str | int | float) else _text(value)

    return dict(walk(scenario.model_dump(), ""))


def _text(value: Any) -> str:
    return "[" + ", ".join(map(_text, value)) + "]" if isinstance(value, list | tuple) else str(value)


def headline(summary: Mapping[str, Any]) -> dict[str, float]:
    """A summary's measures as plain numbers: the means over seeds, and the largest epsilon with its delta."""
    means = {
        name: float(measure["mean"])
        for name, measure in summary.items()
        if isinstance(measure, Mapping) and measure.get("mean") is not None and name != "time_to_accuracy"
    }
    if summary.get("privacy") and summary["privacy"]["epsilon"]["largest"] is not None:
        means["epsilon"] = float(summary["privacy"]["epsilon"]["largest"])
        means["delta"] = float(summary["privacy"]["delta"]["largest"])
    return means
