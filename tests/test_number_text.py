"""Numbers are rounded in the terminal as on the page."""

import pytest

from fedlane.number_text import number_text
from fedlane.report.comparison_tables import difference_text
from fedlane.report.terminal import with_interval
from fedlane.simulation.run_display import run_text


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.0095, "{:.1%}", "1.0%"),
        (0.1245, "{:.1%}", "12.5%"),
        (0.3445, "{:.3f}", "0.345"),
        (-0.0095, "{:.1%}", "-1.0%"),
        (0.1 + 0.2, "{:.2f}", "0.30"),
        (2.675, "{:.2f}", "2.68"),
        (1234.5, "{:,.0f}", "1,235"),
        (0.94999, "{:.1f}", "0.9"),
        (float("inf"), "{:.1f}", "inf"),
    ],
)
def test_decimal_digits_decide(value, form, text):
    assert number_text(value, form) == text


def test_the_terminal_shows_decimally_rounded_numbers():
    measure = {"mean": 0.0095, "low": 0.0085, "high": 0.0105}
    assert with_interval(measure, "{:.1%}") == "1.0% [0.9%, 1.1%]"
    assert difference_text(measure, 1, 100.0) == "+1.0 [0.9, 1.1]"
    assert difference_text({"mean": -0.0001, "low": None, "high": None}, 1, 100.0) == "+0.0"
    none = {"mean": None, "low": None, "high": None}
    names = ("cumulative_delay_s", "mean_round_s", "min_participation", "final_accuracy")
    summary = {
        "scenario": "s",
        "policy": "p",
        "rounds": 1,
        "seeds": [0],
        "late_share": measure,
        **dict.fromkeys(names, none),
    }
    assert "late uploads: 1.0% (95% interval 0.9% to 1.1%)" in run_text(summary, 1)
