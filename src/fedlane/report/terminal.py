"""Results in the terminal: the summary of one run, and several runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Summary = Mapping[str, Any]

_ROWS = (
    ("cumulative delay", "cumulative_delay_s", "{:,.1f}", " s"),
    ("mean round time", "mean_round_s", "{:.3f}", " s"),
    ("late uploads", "late_share", "{:.1%}", ""),
    ("smallest participation", "min_participation", "{:.3f}", ""),
    ("largest participation", "max_participation", "{:.3f}", ""),
    ("largest shortfall to quota", "quota_shortfall", "{:.3f}", ""),
    ("largest queue", "max_queue", "{:.1f}", ""),
)


def with_interval(measure: Mapping[str, float | None], form: str, unit: str = "") -> str:
    """``mean [low, high]``, or the mean alone."""
    if measure["mean"] is None:
        return "-"
    text = form.format(measure["mean"]) + unit
    if measure["low"] is None or measure["high"] is None:
        return text
    return f"{text} [{form.format(measure['low'])}, {form.format(measure['high'])}]"


def _plus_minus(measure: Mapping[str, float | None]) -> str:
    mean, high = measure["mean"], measure["high"]
    assert mean is not None
    return f"{mean:,.0f}" if high is None else f"{mean:,.0f} ± {high - mean:,.0f}"


def summary_table(summary: Summary) -> Table:
    """One run: each measure with its 95% interval over seeds."""
    seeds = len(summary["seeds"])
    title = f"{summary['scenario']} · {summary['policy']} · {summary['rounds']} rounds · {_seeds(summary['seeds'])}"
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    table.add_column("mean [95% interval over seeds]" if seeds > 1 else "value", justify="right")
    for label, key, form, unit in _ROWS:
        table.add_row(label, with_interval(summary[key], form, unit))
    table.add_row("quotas", f"{summary['quota']['smallest']:.3f} to {summary['quota']['largest']:.3f}")
    return table


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Several runs of one scenario, a row each; the last column is time against the first run's."""
    first = summaries[0]
    title = f"{first['scenario']} · {first['rounds']} rounds · {_seeds(first['seeds'])}"
    if len(first["seeds"]) > 1:
        title += " · mean ± 95% interval"
    table = Table(title=title, title_justify="left")
    table.add_column("policy", overflow="fold", min_width=16)
    for heading in ("delay (s)", "late", "participation", "short by", "queue", "vs first"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = first["cumulative_delay_s"]["mean"]
    for summary in summaries:
        smallest, largest = (summary[key]["mean"] for key in ("min_participation", "max_participation"))
        table.add_row(
            summary["policy"],
            _plus_minus(summary["cumulative_delay_s"]),
            f"{summary['late_share']['mean']:.1%}",
            f"{smallest:.2f}-{largest:.2f}",
            f"{summary['quota_shortfall']['mean']:.3f}",
            f"{summary['max_queue']['mean']:.1f}",
            f"x{summary['cumulative_delay_s']['mean'] / base:.2f}" if base else "-",
        )
    return table


def notes(summary: Summary) -> list[str]:
    """What a reader must know beside the numbers."""
    infeasible = summary["infeasible_seeds"]
    if infeasible:
        worst = min(infeasible, key=lambda seed: infeasible[seed])
        of = f"{len(infeasible)} of {len(summary['seeds'])} seeds" if len(summary["seeds"]) > 1 else "this network"
        return [
            f"{summary['policy']}: on {of} no policy could serve these quotas; the best possible reaches "
            f"{infeasible[worst]:.3f} of them (seed {worst})"
        ]
    if summary["feasible_scale"]["mean"] is None:
        return [f"{summary['policy']}: feasibility of the quotas was not checked (too many pairs, or no quotas)"]
    return []


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    consecutive = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if consecutive else f"{len(seeds)} seeds"
