"""The results page: every figure, and the table of claims, as one Markdown file. It is generated, never typed."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fedlane.experiments.claims import Verdict, table
from fedlane.experiments.reproduce import ReproductionPlan

CAPTIONS = {
    "fig-v": "Test accuracy and accumulated delay of OM and GMBA at V = 1, 10, 100, Random and `lane` (epsilon 25).",
    "fig-private": "The same with epsilon 0.8 and b = 10; last, what formula (6) says of these uploads (12.05 in the "
    "paper), and the tight figures.",
    "fig-rounds": "Aggregation rounds within a total time budget.",
    "fig-selection": "Share of rounds in which each client was chosen, with its quota.",
    "fig-accuracy": "Test accuracy of all policies.",
    "fig-delay": "Accumulated delay of all policies.",
    "fig-regret": "Cumulative pseudo-regret; the titles say what Theorem 4's bound is worth.",
    "fig-queues": "The longest virtual queue: the additive rule, success weights, and `lane`.",
    "fig-convergence": "The loss over all training records above the optimum's (softmax), the squared gradient (MLP), "
    "and a constructed setting in which Theorems 5 and 6 say something.",
    "fig-complexity": "Measured time of one decision, with fitted exponents.",
    "fig-sensitivity": "Final accuracy and accumulated delay against iterations, deadline, clients, channels and skew.",
}


def page(
    plan: ReproductionPlan,
    drawn: Sequence[str],
    verdicts: Sequence[Verdict],
    theorems: str,
    images: str,
    note: str = "",
) -> str:
    """The page's Markdown. ``images``: where the pictures lie, as seen from the page."""
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.verdict] = counts.get(verdict.verdict, 0) + 1
    lines = [
        "# Results",
        "",
        "The paper's evaluation on real data: Fashion-MNIST with the MLP, CIFAR-10 with the CNN, both whole. "
        f"Accuracy over {plan.learning_seeds} seeds, delays over {plan.delay_seeds}; bands and brackets are 95% "
        "intervals of the mean over seeds. This page is written by `fedlane reproduce`.",
        "",
        f"FedLane {version('fedlane')}, NumPy {version('numpy')}, PyTorch {version('torch')}, "
        f"Python {platform.python_version()}. {note}".rstrip(),
        "",
    ]
    for name in drawn:
        lines += [f"## {name}", "", f"![{name}]({images}/{name}.png)", "", CAPTIONS[name], ""]
    if theorems:
        lines += ["## The theorems", "", "Ranges are over seeds, brackets 95% intervals of the mean.", "", theorems, ""]
    lines += [
        "## The claims",
        "",
        "; ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) + ". "
        "A claim over several policies, values of V or tasks (F: Fashion-MNIST, C: CIFAR-10) shows its worst case. "
        "Comparisons are paired by seed, and hold where the whole interval lies on the claimed side. "
        "No correction is made for the number of comparisons.",
        "",
        table(verdicts),
    ]
    return "\n".join(lines)


def write_page(
    folder: Path,
    plan: ReproductionPlan,
    drawn: Sequence[str],
    verdicts: Sequence[Verdict],
    theorems: str,
    note: str = "",
) -> Path:
    """Write results.md beside the folder of figures."""
    path = folder / "results.md"
    path.write_text(page(plan, drawn, verdicts, theorems, "figures", note), encoding="utf-8")
    return path
