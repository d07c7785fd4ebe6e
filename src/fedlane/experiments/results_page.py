"""The generated results page: every figure, the theorems and the table of claims, as one Markdown file."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedlane.experiments.claims import Verdict, table
from fedlane.experiments.claims.verdicts import HOLDS
from fedlane.experiments.readings.shares import ClaimShares, map_of, sentences, shares
from fedlane.experiments.reproduce import MAP, ReproductionPlan

CAPTIONS = {
    "fig-v": "Test accuracy and accumulated delay of OM and GMBA at V = 1, 10, 100, Random and `lane` (epsilon 25). "
    "OM and GMBA have the paper's V and T0 in all figures, and our scale 0.1 of the bonus (reading 11) unless a title "
    "says *literal*. `lane` and `genie` are FedLane's own policies, with settings of their own; the section *OM and "
    "lane on equal terms* separates the rule from its settings.",
    "fig-private": "The same with epsilon 0.8 and b = 10. The last panels show the leakage by formula (6) (12.05 in "
    "the paper), the tight composition of rounds that have their claimed epsilon, and a lower bound on what the noise "
    "of the presets leaks if one record is replaced (|D| is our reading 17).",
    "fig-rounds": "Aggregation rounds completed within a time budget. Curves flatten where runs have completed all "
    "their rounds.",
    "fig-selection": "Share of rounds in which each client was selected, and its quota.",
    "fig-accuracy": "Test accuracy of all policies.",
    "fig-delay": "Accumulated delay of all policies. The CNN is shown on two networks: that of Fashion-MNIST with all "
    "times scaled by 0.4 (`paper-cifar10`), and one with constants of its own (`paper-cifar10-wide`). "
    "The dotted line is the optimum: the smallest long-run mean delay "
    "of any policy that uses every channel, does not see the channels of the coming round and serves 7/8 of the quotas "
    "(a linear program over all matchings), over the seeds whose quotas allow that. A run may end a little below it "
    "with quotas unserved. `genie` is a heuristic that knows the distributions; it is not the optimum.",
    "fig-data": "What depends on the number of a client's samples, which the paper does not give (reading 17): the "
    "selection of clients with non-uniform epsilon, and of clients of various sizes and skew (800 samples on average, "
    "ordered by quota), in both readings of the noise in (8); and what epsilon 0.8 costs in "
    "accuracy at 800 and 6,000 samples.",
    "fig-regret": "Cumulative pseudo-regret (reading 15) over 20 seeds: what an assignment's expected worst reward "
    "lacks of the best one's. Titles say whether Theorem 4's bound is vacuous.",
    "fig-queues": "The longest virtual queue with the additive rule, with success weights (reading 12; both with "
    "quotas lowered by 1/8, as `lane` has them), and with `lane`.",
    "fig-convergence": "The gap between the loss over all training records and its optimum (softmax), the squared "
    "gradient (MLP), and a constructed setting in which Theorems 5 and 6 are not vacuous.",
    "fig-complexity": "Measured time per decision (5 repetitions on a machine that ran other work), with exponents "
    "fitted over the range shown. They describe this code at these sizes, overhead included, not its complexity.",
    "fig-sensitivity": "Final accuracy and accumulated delay against iterations, deadline, clients, channels and skew, "
    "over 10 seeds.",
}


@dataclass(frozen=True)
class PageParts:
    """What the results page shows beside figures and claims.

    Attributes:
        theorems: Table of the theorems; empty for none.
        ablation: The comparison of OM and `lane` on equal terms; empty for none.
        readings: The map of readings by claim; empty without a map.
        note: On which machine and for how long the results were computed.
    """

    theorems: str = ""
    ablation: str = ""
    readings: Sequence[ClaimShares] = ()
    note: str = ""


def stored_map(figures: Path) -> list[ClaimShares]:
    """Return what the map of readings in a folder of figures says about each claim; nothing without a map."""
    file = figures / f"{MAP}.parquet"
    return shares(map_of(pq.read_table(file))) if file.is_file() else []


def verdict_table(verdicts: Sequence[Verdict]) -> pa.Table:
    """Return all verdicts as a table, one row per claim."""
    return pa.Table.from_pylist([asdict(verdict) for verdict in verdicts])


def claims_section(verdicts: Sequence[Verdict], readings: Sequence[ClaimShares]) -> str:
    """Return the section on the claims, as Markdown."""
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.verdict] = counts.get(verdict.verdict, 0) + 1
    lines = [
        "## The claims",
        "",
        "Verdicts: " + ", ".join(f"{verdict} ({count})" for verdict, count in sorted(counts.items())) + ". "
        "For a claim about several policies, values of V or tasks (F: Fashion-MNIST, C: CIFAR-10), the table shows the "
        "case with the least margin. Comparisons are paired by seed. A case holds if its whole 95% interval lies on "
        "the claimed side of its bound, and is refuted if it lies wholly on the other side. A claim holds if all its "
        "cases hold, and is refuted if one of them is. An interval that covers the bound decides nothing. A claim "
        "depends on the reading if it holds under one of the readings that the details name and is refuted under "
        "another. Verdicts are corrected for the number of cases, claims and readings by Holm's method. The intervals "
        "and the numbers of cases in the details are not: a claim may be undecided although each of its cases holds "
        "by its own interval, or although one is refuted. Criteria with a number (an accuracy of 0.01, a queue's "
        "growth of 0.01) are ours; the paper's words have none. Some were repaired after the first edition's results "
        "were known (12, 18, 31, 33, 34).",
        "",
        "The claims are not independent. 4, 8, 11 and 17 are one finding, since delay depends neither on epsilon nor "
        "on b; 5 and 21 are nearly one, and so are 13 and 14. In `paper-cifar10` all times are those of Fashion-MNIST "
        "times 0.4, so where a claim is about delays or selection alone, its cases C repeat its cases F.",
        "",
    ]
    if readings:
        lines += [
            "Our presets are one way to fill in what the paper leaves out. *Readings* counts those of the "
            "[map of readings](readings.md) under which a claim holds by its own intervals (uncorrected), of those "
            "under which it was judged, on Fashion-MNIST with fewer seeds. " + sentences(readings),
            "",
        ]
    held = {row.number: f"{row.uncorrected[HOLDS]} of {row.judged}" for row in readings}
    return "\n".join([*lines, table(verdicts, held)])


def page(
    plan: ReproductionPlan, drawn: Sequence[str], verdicts: Sequence[Verdict], images: str, parts: PageParts
) -> str:
    """Return the page as Markdown. ``images`` is the folder of the pictures, relative to the page."""
    lines = [
        "# Results",
        "",
        "The paper's evaluation on real data: the full Fashion-MNIST with the MLP, and the full CIFAR-10 with the CNN. "
        f"Accuracy is measured over {plan.learning_seeds} seeds (from 0) and delays over {plan.delay_seeds}, unless a "
        "caption or a claim's details give another number; bands and brackets are 95% intervals of the mean over "
        "seeds. `fedlane reproduce` generates this page.",
        "",
        "Much of what decides these results is ours, because the paper does not state it: payload, cycles per sample, "
        "interference, samples per client, number of rounds, learning rate, clipping norm, batch size (but in Fig. 3) "
        "and the hidden layer of the MLP. The exploration bonus, which the paper prints, is scaled by 0.1 in our "
        "presets, and shown as printed beside them. [How FedLane reads the paper](reading-the-paper.md) explains "
        "each reading by its number. So a verdict says what holds under our presets, not what the authors saw.",
        "",
        f"FedLane {version('fedlane')}, NumPy {version('numpy')}, PyTorch {version('torch')}, "
        f"Python {platform.python_version()}. {parts.note}".rstrip(),
        "",
    ]
    for name in drawn:
        lines += [f"## {name}", "", f"![{name}]({images}/{name}.png)", "", CAPTIONS[name], ""]
    if parts.ablation:
        lines += ["## OM and lane on equal terms", "", parts.ablation, ""]
    if parts.theorems:
        note = "Ranges are over seeds; brackets are 95% intervals of the mean."
        lines += ["## The theorems", "", note, "", parts.theorems, ""]
    return "\n".join([*lines, claims_section(verdicts, parts.readings)])


def write_page(
    folder: Path, plan: ReproductionPlan, drawn: Sequence[str], verdicts: Sequence[Verdict], parts: PageParts
) -> Path:
    """Write results.md next to the folder of figures and the verdicts into that folder; return the page's path."""
    path = folder / "results.md"
    path.write_text(page(plan, drawn, verdicts, "figures", parts), encoding="utf-8")
    (folder / "figures").mkdir(exist_ok=True)
    pq.write_table(verdict_table(verdicts), folder / "figures" / "claims.parquet")
    return path
