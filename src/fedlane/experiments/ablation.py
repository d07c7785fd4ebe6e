"""OM and `lane` on equal terms: what is left of their difference when OM gets `lane`'s settings.

`lane` has no purely random phase, explores little and lowers the quotas by an eighth. The ablation gives OM these
settings one after the other, and takes the slack away from `lane`. OM's bonus of 0.03 is that of `lane-2026`: `lane`'s
`exploration` scales the value of a look, which is another quantity. V too weighs different quantities in OM and in
`lane`, so no value is equal for both; OM has the paper's 100, and 10 in one row. The ablation stands wherever the two
policies are compared.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedlane.experiments.labels import FASHION_MNIST
from fedlane.experiments.reproduce import ReproductionPlan
from fedlane.experiments.store import Experiment, Result, ResultStore
from fedlane.intervals import interval
from fedlane.records import FloatArray
from fedlane.simulation.optimal_delays import OPTIMUM_SLACK, optimal_delays
from fedlane.simulation.setup import prepare

EQUAL_TERMS = "mamab-om:V=100,T0=1,exploration=0.03,quota_slack=0.125"
"""OM with all settings of `lane` that OM has; V is the paper's."""
EQUAL_PARTICIPATION = "mamab-om:V=10,T0=1,exploration=0.03,quota_slack=0.125,queue_weight=success"
"""The same with success weights and the paper's V = 10, at which OM serves the worst-served client as `lane` does."""
ABLATION = {
    "mamab-om:V=100,exploration=1.0": "OM as printed (V = 100, bonus 1)",
    "mamab-om:V=100": "OM of the preset (V = 100, bonus 0.1)",
    "mamab-om:V=100,T0=1": "... and without the random phase (T0 = 1)",
    "mamab-om:V=100,T0=1,exploration=0.03": "... and with little exploration (bonus 0.03)",
    EQUAL_TERMS: "... and with `lane`'s slack (1/8)",
    f"{EQUAL_TERMS},queue_weight=success": "... and with success weights",
    EQUAL_PARTICIPATION: "... and with V = 10",
    "lane-2026": "`lane-2026` (V = 5, bonus 0.03, slack 1/8)",
    "lane:quota_slack=0": "`lane` without slack (V = 7)",
    "lane": "`lane` (V = 7, slack 1/8)",
}
"""Policies of the ablation and their names in its table. The third to the seventh row each add to the row before."""
BASELINE = "lane"
MEASURES = {
    "delay_s": ("delay (s)", "{:,.0f}"),
    "delay_over_optimum": ("times optimum", "{:.3f}"),
    "min_participation": ("smallest participation", "{:.3f}"),
    "shortfall": ("mean shortfall", "{:.4f}"),
}
"""Heading and format of each measure."""


def compute_ablation(store: ResultStore, seeds: Sequence[int], progress: Callable[[str], None]) -> None:
    """Compute the missing schedules of the ablation; ``progress`` is called with the name of each policy."""
    for policy in ABLATION:
        store.schedule(Experiment(FASHION_MNIST, policy), seeds)
        progress(policy)


def ablation_numbers(store: ResultStore, seeds: Sequence[int]) -> pa.Table:
    """Means over seeds with 95% intervals, and paired differences from `lane`, one row per policy and measure.

    The shortfall is the mean over clients of what a client's participation lacks of 7/8 of its quota, whatever the
    policy's own slack. Delays relative to the optimum exist on the seeds whose quotas can be served.
    """
    setup = prepare(Experiment(FASHION_MNIST, BASELINE).scenario(store.rounds), seeds)
    optimal_s, due = optimal_delays(setup), (1.0 - OPTIMUM_SLACK) * setup.problem.quotas
    assert optimal_s is not None, "the paper's networks have an optimum"
    by_policy = {}
    for policy in ABLATION:
        results = [store.result(Experiment(FASHION_MNIST, policy), seed) for seed in seeds]
        by_policy[policy] = _measured(results, optimal_s, due)
    rows: list[dict[str, Any]] = []
    for policy, values in by_policy.items():
        for measure, of_seeds in values.items():
            known = ~np.isnan(of_seeds)
            difference = interval((of_seeds - by_policy[BASELINE][measure])[known])
            rows.append(
                {
                    "policy": policy,
                    "measure": measure,
                    "seeds": int(known.sum()),
                    **interval(of_seeds[known]),
                    **{f"difference_{key}": value for key, value in difference.items()},
                }
            )
    return pa.Table.from_pylist(rows)


def _measured(results: Sequence[Result], optimal_s: FloatArray, due: FloatArray) -> dict[str, FloatArray]:
    """(S,) for each measure; NaN where there is no optimum."""
    mean_s = np.array([result.delay_s.mean() for result in results])
    participation = np.stack([result.share() for result in results])
    return {
        "delay_s": np.array([result.delay_s.sum() for result in results]),
        "delay_over_optimum": mean_s / optimal_s,
        "min_participation": participation.min(axis=1),
        "shortfall": np.maximum(due - participation, 0.0).mean(axis=1),
    }


def ablation_text(numbers: pa.Table) -> str:
    """Format the numbers as a Markdown table with an explanation."""
    rows = {(row["policy"], row["measure"]): row for row in numbers.to_pylist()}
    headings = [heading for heading, _ in MEASURES.values()]
    lines = [
        f"| {' | '.join(['policy', *headings])} |",
        "|---" * (1 + len(headings)) + "|",
        *(
            f"| {' | '.join([name, *(_cell(rows[policy, measure], measure) for measure in MEASURES)])} |"
            for policy, name in ABLATION.items()
        ),
        "",
        f"Means over {_seeds(rows, 'delay_s')} seeds of `paper-fmnist` ({_seeds(rows, 'delay_over_optimum')} of which "
        "have an optimum) with 95% intervals; the second line of a cell is the difference from `lane`, seed by seed. "
        "*Shortfall* is what participation lacks of 7/8 of the quota, mean over clients, whatever the policy's slack. "
        "*Times optimum* is relative to the smallest long-run mean delay that serves 7/8 of the quotas; a run may end "
        "a little below it with quotas unserved.",
        "",
        _conclusion(rows),
    ]
    return "\n".join(lines) + "\n"


def _conclusion(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    """What remains of the difference once OM has `lane`'s settings, and once it also serves clients alike."""

    def mean(policy: str, measure: str) -> float:
        value: float = rows[policy, measure]["mean"]
        return value

    def difference(policy: str) -> str:
        row = rows[policy, "delay_s"]
        ends = f"[{row['difference_low']:+.0f}, {row['difference_high']:+.0f}]"
        return f"{row['difference_mean']:+.0f} s {ends}"

    smallest = "min_participation"
    return (
        f"With a slack of 1/8, no random phase and little exploration, OM's delay at V = 100 differs from `lane`'s by "
        f"{difference(EQUAL_TERMS)}, and the client that is served worst takes part in "
        f"{mean(EQUAL_TERMS, smallest):.3f} of the rounds instead of {mean(BASELINE, smallest):.3f}, where 0.35 is "
        f"due. V trades one for the other, and does not have the same meaning in both rules. With success weights and "
        f"V = 10 (of 3, 7, 10 and 30 the value at which it serves that client as `lane` does, chosen on these seeds), "
        f"that client takes part in {mean(EQUAL_PARTICIPATION, smallest):.3f} of OM's rounds, and OM's delay "
        f"differs from `lane`'s by {difference(EQUAL_PARTICIPATION)}."
    )


def _seeds(rows: dict[tuple[str, str], dict[str, Any]], measure: str) -> int:
    seeds: int = rows[BASELINE, measure]["seeds"]
    return seeds


def _cell(row: dict[str, Any], measure: str) -> str:
    form = MEASURES[measure][1]
    mean, low, high = (form.format(row[key]) for key in ("mean", "low", "high"))
    if row["policy"] == BASELINE:
        return f"{mean} [{low}, {high}]"
    signed = form.replace(":", ":+", 1)
    difference, *ends = (row[f"difference_{key}"] for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]<br>{signed.format(difference)} [{signed.format(ends[0])}, {signed.format(ends[1])}]"


BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"


def insert_ablation(page: Path, numbers: pa.Table) -> None:
    """Replace what a page has between the marks of the ablation by the table."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{marked(numbers)}{after}", encoding="utf-8")


def marked(numbers: pa.Table) -> str:
    """The table between the marks by which `insert_ablation` finds it."""
    return f"{BEGIN}\n{ablation_text(numbers)}{END}"


def ablation_section(plan: ReproductionPlan, store: ResultStore) -> str:
    """The ablation on the plan's seeds for the results page, computed if it is missing; empty without its task."""
    if FASHION_MNIST not in plan.tasks:
        return ""
    compute_ablation(store, plan.scheduled_seeds, lambda policy: None)
    return marked(ablation_numbers(store, plan.scheduled_seeds))
