"""Figures from results, in one style that is safe for colour-blind readers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedlane.intervals import student_interval
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's palette, and one more colour."""


def partition_figure(counts: IntArray, path: Path) -> None:
    """Draw the samples of each client by class as stacked bars.

    Args:
        counts: (U, M), samples of each class held by each client.
        path: picture to write, a .png, .pdf or .svg file.

    Raises:
        InputError: the picture cannot be written.
    """
    figure, axes = _figure(max(5.0, min(14.0, 2.5 + 0.35 * len(counts))), 3.6)
    base = np.zeros(len(counts))
    shades = np.linspace(0.0, 0.95, counts.shape[1])
    for label, column in enumerate(counts.T):
        axes.bar(np.arange(len(counts)), column, bottom=base, width=0.85, color=_shade(shades[label]), label=str(label))
        base += column
    axes.set_xlabel("client")
    axes.set_ylabel("samples")
    if len(counts) <= 30:
        axes.set_xticks(np.arange(len(counts)))
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, path)


def time_figure(runs: Mapping[str, "pa.Table"], path: Path) -> None:
    """Draw simulated time against rounds: mean over seeds and 95% band.

    Args:
        runs: `rounds` tables of runs (`Run.rounds`) by the name to show.
        path: picture to write, a .png, .pdf or .svg file.

    Raises:
        InputError: the picture cannot be written.
    """
    figure, axes = _figure(5.0, 3.8)
    for number, (name, rounds) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        replicas = int(rounds["replica"].to_numpy().max()) + 1
        low, mean, high = student_interval(rounds["clock_s"].to_numpy().reshape(replicas, -1))
        axes.plot(np.arange(1, len(mean) + 1), mean, color=colour, label=name)
        axes.fill_between(np.arange(1, len(mean) + 1), low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("simulated time (s)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    _save(figure, path)


def accuracy_figure(runs: Mapping[str, "pa.Table"], path: Path) -> None:
    """Draw test accuracy against rounds and against simulated time: mean over seeds and 95% band.

    Where numbers are learned, the loss takes the place of the accuracy.

    Args:
        runs: `rounds` tables of runs (`Run.rounds`) by the name to show.
        path: picture to write, a .png, .pdf or .svg file.

    Raises:
        InputError: the picture cannot be written.
    """
    figure, axes = _figure(9.0, 3.8, columns=2)
    for (name, rounds), colour in zip(runs.items(), COLOURS * (1 + len(runs) // len(COLOURS)), strict=False):
        round, clock_s, values, measure = _curves(rounds)
        low, mean, high = student_interval(values)
        axes[0].plot(round + 1, mean, color=colour, label=name)
        axes[0].fill_between(round + 1, low, high, color=colour, alpha=0.2, linewidth=0)
        axes[1].plot(clock_s.mean(axis=0), mean, color=colour, label=name)
        axes[1].fill_between(clock_s.mean(axis=0), low, high, color=colour, alpha=0.2, linewidth=0)
    axes[0].set_xlabel("round")
    axes[1].set_xlabel("simulated time (s), mean over seeds")
    for panel in axes:
        panel.set_ylabel(f"test {measure}")
        panel.grid(alpha=0.3)
    axes[1].legend(frameon=False, loc="lower right")
    _save(figure, path)


class DrawnAudit(Protocol):
    """What the picture of an audit shows of its result."""

    @property
    def scores(self) -> tuple[FloatArray, FloatArray]:
        """The attack's scores without and with the record."""

    @property
    def threshold(self) -> float:
        """Score above which the attack says that the record is there."""

    @property
    def claim(self) -> float:
        """Claimed epsilon of one upload."""

    @property
    def epsilon_low(self) -> float:
        """Measured lower bound on epsilon."""

    @property
    def delta(self) -> float:
        """Delta of both."""

    @property
    def confidence(self) -> float:
        """Confidence of the lower bound."""


def audit_figure(result: DrawnAudit, path: Path) -> None:
    """Draw an audit: the attack's scores without and with the record, and its bound on epsilon next to the claim."""
    scores, claim, bound = result.scores, result.claim, result.epsilon_low
    figure, axes = _figure(9.0, 3.8, columns=2)
    unit = float(scores[0].std()) or 1.0
    edges = np.histogram_bin_edges(np.concatenate(scores) / unit, 80)
    for values, name, colour in zip(scores, ("without the record", "with the record"), COLOURS, strict=False):
        values = values / unit
        axes[0].hist(values, edges, density=True, histtype="stepfilled", alpha=0.5, color=colour, label=name)
    axes[0].axvline(result.threshold / unit, color="black", linestyle="--", linewidth=1, label="threshold")
    axes[0].set_xlabel("attack's score of an upload, in standard deviations")
    axes[0].set_ylabel("density of trials")
    axes[0].legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize="small")
    refuted = bound > claim
    axes[1].barh([1, 0], [claim, bound], color=[COLOURS[0], COLOURS[1] if refuted else COLOURS[2]], height=0.5)
    axes[1].set_yticks([1, 0], ["claimed", f"measured lower bound\n({result.confidence:.1%} confidence)"])
    axes[1].bar_label(axes[1].containers[0], labels=[f"{claim:g}", f"{bound:.2f}"], padding=3)
    axes[1].margins(x=0.15)
    axes[1].set_xlabel(f"epsilon of one upload at delta {result.delta:g}" + (": claim refuted" if refuted else ""))
    _save(figure, path)


def check_picture(path: Path) -> None:
    """Raise `InputError` if the file type of a picture is not supported, before any work is done."""
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in kinds:
        raise InputError(f"picture {path} must end in .png, .pdf or .svg")


def _curves(rounds: "pa.Table") -> tuple[IntArray, FloatArray, FloatArray, str]:
    """Tested rounds (K,), clock (R, K), and accuracy (R, K) of a `rounds` table, or the loss if it has no accuracy."""
    replicas = int(rounds["replica"].to_numpy().max()) + 1
    measure = "loss" if rounds["accuracy"].null_count == len(rounds) else "accuracy"
    values = rounds[measure].to_numpy().reshape(replicas, -1)
    tested = np.flatnonzero(~np.isnan(values).any(axis=0))
    return tested, rounds["clock_s"].to_numpy().reshape(replicas, -1)[:, tested], values[:, tested], measure


def _shade(position: float) -> Any:
    from matplotlib import colormaps

    return colormaps["cividis"](position)


def _figure(width: float, height: float, columns: int = 1) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"picture {path} cannot be written: {error}") from error
