"""Results in the terminal: a table for one run, and a comparison of several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedlane.number_text import number_text
from fedlane.report.optimum_ratio import RATIO

Summary = Mapping[str, Any]

_ROWS = (
    ("cumulative delay", "cumulative_delay_s", "{:,.1f}", " s"),
    ("mean round time", "mean_round_s", "{:.3f}", " s"),
    ("late uploads", "late_share", "{:.1%}", ""),
    ("min. participation", "min_participation", "{:.3f}", ""),
    ("max. participation", "max_participation", "{:.3f}", ""),
    ("largest quota shortfall", "quota_shortfall", "{:.3f}", ""),
    ("largest queue", "max_queue", "{:.1f}", ""),
)
LOWER_BOUND_MECHANISMS = frozenset({"paper"})
"""Mechanisms whose accounted epsilon is a lower bound on the leakage."""


NO_VALUE: Mapping[str, float | None] = {"mean": None, "low": None, "high": None}
CLEARLY_INFEASIBLE = 0.99
"""Feasible scale below which a note says that no policy can meet the quotas."""


def with_interval(measure: Mapping[str, float | None], form: str, unit: str = "") -> str:
    """``mean [low, high]``, or the mean alone."""
    if measure["mean"] is None:
        return "-"
    text = number_text(measure["mean"], form) + unit
    if measure["low"] is None or measure["high"] is None:
        return text
    return f"{text} [{number_text(measure['low'], form)}, {number_text(measure['high'], form)}]"


def _plus_minus(measure: Mapping[str, float | None]) -> str:
    mean, high = measure["mean"], measure["high"]
    assert mean is not None
    text = number_text(mean, "{:,.0f}")
    return text if high is None else f"{text} ± {number_text(high - mean, '{:,.0f}')}"


def _time_to(summary: Summary) -> str:
    """Mean time to the target accuracy over the seeds that reach it, and their number if not all do."""
    measure = summary["time_to_accuracy"]
    if not measure["reached"]:
        return "never"
    text, seeds = number_text(measure["mean"], "{:,.0f} s"), len(summary["seeds"])
    return f"{text} ({measure['reached']}/{seeds})" if measure["reached"] < seeds else text


def summary_table(summary: Summary) -> Table:
    """Table of one run: each measure with its 95% interval over seeds."""
    seeds = len(summary["seeds"])
    title = f"{summary['scenario']} · {summary['policy']} · {summary['rounds']} rounds · {_seeds(summary['seeds'])}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("measure")
    table.add_column("mean [95% interval over seeds]" if seeds > 1 else "value", justify="right")
    for label, key, form, unit in _ROWS:
        table.add_row(label, with_interval(summary[key], form, unit))
    if summary["final_accuracy"]["mean"] is not None:
        table.add_row("final accuracy", with_interval(summary["final_accuracy"], "{:.4f}"))
    if "time_to_accuracy" in summary:
        table.add_row(f"time to accuracy {summary['time_to_accuracy']['target']:g}", _time_to(summary))
    if summary.get("privacy"):
        table.add_row(*_privacy_row(summary["privacy"]))
    if "energy_j" in summary:
        table.add_row("energy of all clients", with_interval(summary["energy_j"], "{:,.1f}", " J"))
    if "coverage_90" in summary:
        table.add_row("coverage of 90% predictions", with_interval(summary["coverage_90"], "{:.1%}"))
    if "present_share" in summary and summary["present_share"]["mean"] < 1:
        table.add_row("mean presence", with_interval(summary["present_share"], "{:.1%}"))
    table.add_row("quotas", f"{summary['quota']['smallest']:.3f} to {summary['quota']['largest']:.3f}")
    return table


def _privacy_row(privacy: Mapping[str, Any]) -> tuple[str, str]:
    """The largest epsilon spent by a client and the budget, with their delta."""
    largest, agreed = privacy["epsilon"]["largest"], privacy["epsilon_agreed"]["largest"]
    if privacy["mechanism"] in LOWER_BOUND_MECHANISMS:
        return "largest epsilon by the paper's formula", f"{privacy['epsilon_paper']:.2f} {_at_delta(privacy)}"
    unreported = privacy.get("unreported", 0)
    if largest is None:
        return "largest epsilon spent, of agreed", "unreported"
    missing = f" ({unreported} unreported)" if unreported else ""
    return "largest epsilon spent, of agreed", f"{largest:.3f} of {agreed:g} {_at_delta(privacy)}{missing}"


def _at_delta(privacy: Mapping[str, Any]) -> str:
    """``at delta D``, or the range of deltas that the clients agreed to."""
    low, high = privacy["delta"]["smallest"], privacy["delta"]["largest"]
    return f"at delta {low:g}" if low == high else f"at delta {low:g} to {high:g}"


def policy_table(title: str, headings: Sequence[str], *, narrow: bool = True) -> Table:
    """Return an empty table with one row per policy, which fits 80 columns: long policy names are folded."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    if narrow:
        table.padding = (0, 1, 0, 0)
    table.add_column("policy", overflow="fold", min_width=10)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Table of several runs of one scenario, one row per run."""
    first = summaries[0]
    title = f"{first['scenario']} · {first['rounds']} rounds · {_seeds(first['seeds'])}"
    if len(first["seeds"]) > 1:
        title += " · mean ± 95% interval"
    learned = first["final_accuracy"]["mean"] is not None
    optimal = any(summary.get(RATIO) for summary in summaries)
    headings = ["delay (s)", "ratio", *["times\noptimum"] * optimal, "late", "min.\nparticipation", "shortfall"]
    headings += ["accuracy"] * learned
    table = policy_table(title, headings, narrow=learned or optimal)
    base = first["cumulative_delay_s"]["mean"]
    for summary in summaries:
        table.add_row(
            escape(summary["policy"]),
            _plus_minus(summary["cumulative_delay_s"]),
            f"{summary['cumulative_delay_s']['mean'] / base:.2f}" if base else "-",
            *([_times_optimum(summary)] if optimal else []),
            number_text(summary["late_share"]["mean"], "{:.1%}"),
            number_text(summary["min_participation"]["mean"], "{:.3f}"),
            with_interval({**summary.get("problem_shortfall", NO_VALUE), "low": None}, "{:.3f}"),
            *([with_interval({**summary["final_accuracy"], "low": None}, "{:.3f}")] if learned else []),
        )
    table.caption = (
        "ratio: delay relative to the first row; late: share of uploads; "
        "min. participation: smallest share of rounds of any client; "
        "shortfall: largest of any client from the problem's quotas, without a policy's slack"
    )
    return table


def _times_optimum(summary: Summary) -> str:
    ratio = summary.get(RATIO)
    return "-" if not ratio or ratio["mean"] is None else f"{ratio['mean']:.2f}"


def notes(summary: Summary) -> list[str]:
    """Return the remarks that a reader of the numbers needs."""
    return [*_target(summary), *_feasibility(summary), *_privacy(summary)]


def _target(summary: Summary) -> list[str]:
    """A remark for a run whose own target accuracy is not that of the table."""
    if "saved_target" not in summary:
        return []
    shown = summary.get("time_to_accuracy")
    here = f"the table shows its time to {shown['target']:g}" if shown else "the table has no target"
    return [f"{summary['policy']}: this run was saved with the target accuracy {summary['saved_target']:g}; {here}"]


def _privacy(summary: Summary) -> list[str]:
    privacy = summary.get("privacy")
    if not privacy:
        return []
    lines = []
    if unreported := privacy.get("unreported", 0):
        lines.append(
            f"{summary['policy']}: {unreported} of {privacy['clients']} clients have not answered their last order: "
            "what they have spent is unreported and may be more than the epsilon shown; their ledgers have it"
        )
    if privacy["exhausted"]:
        lines.append(f"{summary['policy']}: {privacy['exhausted']} client budgets are exhausted")
    if privacy["mechanism"] in LOWER_BOUND_MECHANISMS and privacy["epsilon"]["largest"] > privacy["epsilon_paper"]:
        lines.append(
            f"{summary['policy']}: the mechanism 'paper' leaks an epsilon of at least "
            f"{privacy['epsilon']['largest']:,.0f} {_at_delta(privacy)} for the worst client, but the paper's formula "
            f"gives {privacy['epsilon_paper']:.1f}"
        )
    return lines


def _feasibility(summary: Summary) -> list[str]:
    # The scale is estimated from sampled rounds: values just below 1 decide nothing.
    infeasible = {seed: scale for seed, scale in summary["infeasible_seeds"].items() if scale < CLEARLY_INFEASIBLE}
    if infeasible:
        worst = min(infeasible, key=lambda seed: infeasible[seed])
        of = f"{len(infeasible)} of {len(summary['seeds'])} seeds" if len(summary["seeds"]) > 1 else "this network"
        return [
            f"{summary['policy']}: on {of} no policy can meet these quotas; the best possible policy reaches "
            f"{infeasible[worst]:.3f} of them (seed {worst})"
        ]
    if summary["feasible_scale"]["mean"] is None and "flower" not in summary:  # unknown for a real network
        return [
            f"{summary['policy']}: feasibility of the quotas was not checked "
            "(too many pairs, no quotas, or a network that changes with time)"
        ]
    return []


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    consecutive = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if consecutive else f"{len(seeds)} seeds"
