"""The figures of the paper's evaluation."""

import matplotlib.figure
import numpy as np
import pytest

from fedlane.report.paper_figures import Line, Panel, draw


@pytest.mark.slow
def test_a_legend_with_long_labels_stays_within_the_figure(tmp_path, monkeypatch):
    drawn = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure,
        "savefig",
        lambda figure, *args, **kw: (drawn.append(figure), save(figure, *args, **kw)),
    )
    labels = [f"noise that is composed as tightly as possible, {number}" for number in range(8)]
    lines = {label: Line(np.arange(3.0), np.zeros((2, 3)), number) for number, label in enumerate(labels)}
    draw([Panel("panel", "x", "y", lines)], tmp_path / "figure")
    legend = drawn[0].legends[0].get_window_extent()
    assert len(drawn[0].legends) == 1
    assert legend.x0 >= 0
    assert legend.x1 <= drawn[0].bbox.width
