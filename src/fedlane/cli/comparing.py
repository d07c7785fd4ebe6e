"""What `fedlane compare` compares: the runs that it has played, and runs in other folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.cli.session import damaged_if_wrong
from fedlane.files import file_name
from fedlane.validate import InputError

if TYPE_CHECKING:  # imported inside functions, to keep `fedlane --help` fast
    from fedlane.report.comparison import ComparedRun
    from fedlane.report.optimum_ratio import OptimumBySeed
    from fedlane.simulation import Run


def save_comparison(
    runs: "Sequence[tuple[str, Run]]", extra: "Sequence[ComparedRun]", folder: Path, target: float | None
) -> dict[str, Any]:
    """Compare the runs of a comparison, save the result in its folder and return it.

    Args:
        runs: The runs with their policies as the user named them; the first is the baseline.
        extra: Runs in other folders, to be shown as well.
        folder: Folder of the comparison.
        target: Accuracy to report the time to.
    """
    from fedlane.report.comparison import comparison, write_comparison

    entries = [_compared(result, result.summary["policy"], file_name(policy), target) for policy, result in runs]
    content = comparison([*entries, *extra], _optimum(runs[0][1]))
    write_comparison(content, folder)
    return content


def _optimum(result: "Run") -> "OptimumBySeed | None":
    """The optimum of a run's networks, if they are small and of the paper's kind."""
    from fedlane.report.optimum_ratio import OptimumBySeed
    from fedlane.simulation.optimal_delays import OPTIMUM_SLACK, optimal_delays
    from fedlane.simulation.setup import prepare

    seeds = list(result.summary["seeds"])
    round_s = optimal_delays(prepare(result.scenario, seeds))
    return None if round_s is None else OptimumBySeed(OPTIMUM_SLACK, dict(zip(seeds, round_s.tolist(), strict=True)))


def _compared(result: "Run", label: str, subfolder: str | None, target: float | None) -> "ComparedRun":
    """Return a run as it takes part in a comparison, with its measures for every seed."""
    from fedlane.report.comparison import TIME, ComparedRun
    from fedlane.report.seed_measures import PROBLEM_SHORTFALL, problem_shortfall, seed_measures

    values = seed_measures(result.tables)
    values[PROBLEM_SHORTFALL] = problem_shortfall(result.tables, result.summary)
    if target is not None:
        values[TIME] = result.time_to_accuracy(target)
    return ComparedRun({**with_target(result, target), "policy": label}, values, subfolder)


def extra_run(path: Path, target: float | None) -> "ComparedRun":
    """Load a run for a comparison, and check before anything is computed that all of it can be shown."""
    from fedlane.report.comparison import comparison
    from fedlane.report.comparison_tables import comparison_tables
    from fedlane.report.terminal import notes
    from fedlane.simulation import Run

    with damaged_if_wrong(path):
        result = Run.load(path)
        entry = _compared(result, f"{result.summary['policy']} ({path.name})", None, target)
        seeds = result.summary["seeds"]
        if len(set(seeds)) != len(seeds) or any(len(values) != len(seeds) for values in entry.values.values()):
            raise InputError(f"{path} is damaged: its tables do not have one replica for each of its seeds")
        content = comparison([entry])
        json.dumps(content, allow_nan=False)
        comparison_tables({**content, "runs": [*content["runs"], {**content["runs"][0], "differences": {}}]})
        notes(entry.summary)
    return entry


def with_target(result: "Run", target: float | None) -> dict[str, Any]:
    """Return the summary of a run with the time to reach ``target``, whatever target it was saved with."""
    from fedlane.targets import target_measure

    summary = {key: value for key, value in result.summary.items() if key != "time_to_accuracy"}
    saved = result.scenario.learning.target_accuracy
    if saved not in (None, target) and summary["final_accuracy"]["mean"] is not None:
        summary["saved_target"] = saved
    if target is not None:
        summary["time_to_accuracy"] = target_measure(result.time_to_accuracy(target), target)
    return summary
