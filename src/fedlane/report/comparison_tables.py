"""A comparison in the terminal: the runs, their times to the target accuracy, and paired differences."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from fedlane.number_text import number_text
from fedlane.report.comparison import TIME
from fedlane.report.optimum_ratio import optimum_caption
from fedlane.report.seed_measures import ENERGY
from fedlane.report.terminal import comparison_table, policy_table, with_interval

DIFFERENCES = (
    ("delay (s)", "cumulative_delay_s", 1, 1.0),
    ("late (pp)", "late_share", 1, 100.0),
    ("min. participation", "min_participation", 3, 1.0),
)
"""Heading, measure, decimals and factor of the columns of differences."""
ACCURACY = ("accuracy (pp)", "final_accuracy", 1, 100.0)
"""Shown instead of the participation if the runs learn: three columns fit a terminal of 80 columns."""

UNITS = "pp: percentage points"
UNITS_WITHOUT_LEARNING = f"{UNITS}; min. participation as a share of rounds"


def comparison_tables(content: Mapping[str, Any]) -> Group:
    """Return the tables of a comparison.

    Args:
        content: The content of comparison.json.
    """
    table = comparison_table(content["runs"])
    if caption := optimum_caption(content):
        table.caption = f"{table.caption}; {caption}"
    parts: list[Table | str] = [table]
    if content["target_accuracy"] is not None:
        parts += ["", _time_table(content)]
    if ENERGY in content["measures"]:
        parts += ["", _energy_table(content)]
    if len(content["runs"]) > 1:
        parts += ["", _difference_table(content)]
    return Group(*parts)


def _time_table(content: Mapping[str, Any]) -> Table:
    """Simulated time to the target accuracy, over the seeds that reach it."""
    table = policy_table(f"time to accuracy {content['target_accuracy']:g}", ("time (s)", "seeds", "difference (s)"))
    for run in content["runs"]:
        measure, difference = run["time_to_accuracy"], (run["differences"] or {}).get(TIME)
        table.add_row(
            escape(run["policy"]),
            with_interval(measure, "{:,.0f}") if measure["reached"] else "never",
            f"{measure['reached']} of {len(run['seeds'])}",
            difference_text(difference, 0),
        )
    table.caption = "over the seeds that reach it; differences over the seeds on which both policies do"
    return table


def _energy_table(content: Mapping[str, Any]) -> Table:
    """Energy of all clients together."""
    table = policy_table("energy of all clients", ("energy (J)", "difference (J)"))
    for run in content["runs"]:
        difference = difference_text((run["differences"] or {}).get(ENERGY), 1)
        table.add_row(escape(run["policy"]), with_interval(run[ENERGY], "{:,.1f}"), difference)
    table.caption = "training and uploads, late and failed ones included"
    return table


def _difference_table(content: Mapping[str, Any]) -> Table:
    """Paired differences from the first run."""
    learned = content["runs"][0]["final_accuracy"]["mean"] is not None
    columns = (*DIFFERENCES[:2], ACCURACY if learned else DIFFERENCES[2])
    table = policy_table(f"difference from {content['baseline']}, seed by seed", [column[0] for column in columns])
    for run in content["runs"][1:]:
        cells = [difference_text(run["differences"].get(name), digits, scale) for _, name, digits, scale in columns]
        table.add_row(escape(run["policy"]), *cells)
    if len(content["seeds"]) > 1:
        table.caption = f"mean [95% interval]; {UNITS if learned else UNITS_WITHOUT_LEARNING}"
    else:
        table.caption = f"one seed: no interval; {UNITS if learned else UNITS_WITHOUT_LEARNING}"
    return table


def difference_text(measure: Mapping[str, Any] | None, decimals: int, scale: float = 1.0) -> str:
    """Return a difference as ``+mean [low, high]``; numbers with three digits or more are shown without decimals."""
    if measure is None or measure["mean"] is None:
        return "-"
    mean, *ends = (scale * measure[key] for key in ("mean", "low", "high") if measure[key] is not None)
    digits = 0 if max(abs(value) for value in (mean, *ends)) >= 100 else decimals
    shown = [number_text(value, f"{{:,.{digits}f}}") for value in (mean, *ends)]
    texts = [text if text.strip("-0.") else text.removeprefix("-") for text in shown]  # no "-0.0"
    text = texts[0] if texts[0].startswith("-") else f"+{texts[0]}"
    return f"{text} [{texts[1]}, {texts[2]}]" if len(texts) == 3 else text
