"""A comparison as a LaTeX table that fits the column of a two-column paper. It needs the package booktabs only."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from fedlane.number_text import number_text
from fedlane.report.measure_labels import measure_label

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
"""How LaTeX writes the characters that it would otherwise interpret, or that the standard fonts lack."""
MOST_DECIMALS = 4


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is.

    Accents are dropped and characters beyond ASCII become ``?``: which of them a document can print depends on its
    fonts. A line may be broken after ``:`` and ``,``, so that long policy names fit a narrow column.
    """
    ascii_text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    escaped = "".join(_SPECIAL.get(c, c if " " <= c <= "~" else "?") for c in ascii_text)
    return re.sub(r"(?<=[:,])(?=\S)", r"\\allowbreak{}", escaped)


def latex_table(content: Mapping[str, Any]) -> str:
    """Return the table of a comparison.

    Args:
        content: The content of comparison.json.
    """
    rows: list[str] = []
    for name in content["measures"]:
        if all(_measure(run, name)["mean"] is None for run in content["runs"]):
            continue
        rows += [r"\addlinespace"] if rows else []
        rows += [rf"\multicolumn{{5}}{{@{{}}l}}{{\emph{{{_heading(name, content)}}}}} \\", *_rows(name, content)]
    return "\n".join(
        (
            r"% Written by fedlane compare. Needs \usepackage{booktabs}.",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_caption(content)}}}",
            r"\label{tab:comparison}",
            r"\footnotesize",
            r"\setlength{\tabcolsep}{3pt}",
            r"\begin{tabular}{@{}p{0.27\columnwidth}r@{\ }lr@{\ }l@{}}",
            r"\toprule",
            r"Policy & \multicolumn{2}{c}{Mean} & \multicolumn{2}{c@{}}{Difference} \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        )
    )


def _caption(content: Mapping[str, Any]) -> str:
    seeds = len(content["seeds"])
    text = f"{escape_latex(content['scenario'])}, {content['rounds']} rounds, "
    if seeds == 1:
        text += f"seed {content['seeds'][0]}; a single seed has no interval."
    else:
        text += rf"{seeds} seeds: means over seeds, with 95\% intervals in brackets."
    if len(content["runs"]) > 1:
        paired = "" if seeds == 1 else ", paired by seed"
        text += f" Differences are from {escape_latex(content['baseline'])}{paired}"
        text += ", in the unit of the measure; those of percentages are in percentage points."
    return text


def _heading(name: str, content: Mapping[str, Any]) -> str:
    label = measure_label(name)
    text = label.text[0].upper() + label.text[1:]
    if name == "time_to_accuracy_s":
        text += f" {100 * content['target_accuracy']:g}%"
    return escape_latex(f"{text} ({label.unit})" if label.unit else text)


def _measure(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    measure: Mapping[str, Any] = run["time_to_accuracy"] if name == "time_to_accuracy_s" else run[name]
    return measure


def _rows(name: str, content: Mapping[str, Any]) -> list[str]:
    scale = measure_label(name).scale
    cells = [(_measure(run, name), (run["differences"] or {}).get(name)) for run in content["runs"]]
    decimals = _decimals((measure for pair in cells for measure in pair if measure is not None), scale)
    rows = []
    for run, (measure, difference) in zip(content["runs"], cells, strict=True):
        policy = escape_latex(run["policy"])
        reached, seeds = measure.get("reached", len(run["seeds"])), len(run["seeds"])
        if reached < seeds:
            policy += f" ({reached} of {seeds} seeds)"
        parts = [*_cells(measure, scale, decimals), *_cells(difference, scale, decimals, sign="+")]
        rows.append(rf"\raggedright {policy} & {' & '.join(parts)} \\")
    return rows


def _cells(measure: Mapping[str, Any] | None, scale: float, decimals: int, sign: str = "") -> tuple[str, str]:
    """The mean and its interval, each ready for a cell of the table."""
    if measure is None or measure["mean"] is None:
        return "--", ""

    def shown(value: float, sign: str = "") -> str:
        text = number_text(scale * value, f"{{:{sign}.{decimals}f}}")
        return text.replace("-", "").replace("+", "") if float(text) == 0 else text

    mean = f"${shown(measure['mean'], sign)}$"
    if measure["low"] is None:
        return mean, ""
    return mean, f"$[{shown(measure['low'])},\\, {shown(measure['high'])}]$"


def _decimals(measures: Iterable[Mapping[str, Any]], scale: float) -> int:
    """Decimals that show two digits of the narrowest interval; without intervals, three digits of the largest mean."""
    known = [measure for measure in measures if measure["mean"] is not None]
    widths = [scale * (m["high"] - m["low"]) / 2 for m in known if m["low"] is not None and m["high"] > m["low"]]
    means = [abs(scale * m["mean"]) for m in known if m["mean"]]
    if widths:
        digits = 1 - math.floor(math.log10(min(widths)))
    else:
        digits = 2 - math.floor(math.log10(max(means))) if means else 0
    return min(max(digits, 0), MOST_DECIMALS)
