"""Figures for papers: what is drawn, its intervals, the files, and clear errors for wrong names."""

import itertools
import re
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane.intervals import bounded_interval
from fedlane.report import plot
from fedlane.report.plot_data import table_data
from fedlane.report.plot_drawing import RUN_COLOURS, draw_plot, run_style
from fedlane.report.plot_layout import plot_layout
from fedlane.report.plot_request import PlotRequest
from fedlane.validate import InputError


def sweep(**changes):
    """A sweep's table over two policies, three budgets, two numbers of clients and four seeds, with known values."""
    rows = []
    for policy, epsilon, clients, seed in itertools.product(
        ("lane", "mamab-om:V=10"), (8.0, 1.0, 4.0), (10, 20), range(4)
    ):
        accuracy = 0.5 + epsilon / 20 + 0.01 * seed - 0.05 * (policy != "lane") + clients / 1000
        row = {"policy": policy, "privacy.epsilon": epsilon, "network.clients": clients, "seed": seed}
        rows.append({**row, "final_accuracy": accuracy, "late_share": 0.3 * (seed == 3), **changes})
    return pa.Table.from_pylist(rows)


def layout(table, **names):
    return plot_layout(table_data(table), PlotRequest(**names))


def test_a_sweep_over_a_numeric_key_with_colours_and_panels():
    figure = layout(sweep(), x="privacy.epsilon", y="final_accuracy", color="policy", facet="network.clients")
    assert [panel.title for panel in figure.panels] == ["network.clients = 10", "network.clients = 20"]
    lane, mamab = figure.panels[1].series
    assert (lane.label, mamab.label) == ("lane", "mamab-om:V=10")
    assert lane.x.tolist() == [1.0, 4.0, 8.0]
    np.testing.assert_allclose(lane.mean, 100 * (0.5 + np.array([1, 4, 8]) / 20 + 0.015 + 0.02))
    low, _, _ = bounded_interval(0.5 + 1 / 20 + 0.02 + 0.01 * np.arange(4), (0.0, 1.0))
    assert lane.low[0] == pytest.approx(100 * low)


def test_the_colours_of_a_sweep_show_what_differs():
    one_size = sweep().filter(pa.compute.equal(sweep()["network.clients"], 10))
    figure = layout(one_size, x="privacy.epsilon", y="final_accuracy")
    assert (figure.legend, [series.label for series in figure.panels[0].series]) == (
        "policy",
        ["lane", "mamab-om:V=10"],
    )


def test_bands_of_shares_stay_within_0_and_1():
    figure = layout(sweep(), x="privacy.epsilon", y="late_share", color="policy", facet="network.clients")
    lows = np.concatenate([series.low for panel in figure.panels for series in panel.series])
    assert (lows == 0.0).all()


def test_a_policy_parameter_on_the_axis_leaves_the_name_of_the_policy():
    names = ("mamab-om:V=100,T0=5", "mamab-om:V=10,T0=5", "lane", "lane:V=10")
    rows = [{"policy": name, "seed": seed, "late_share": 0.1} for name in names for seed in (0, 1)]
    figure = layout(pa.Table.from_pylist(rows), x="V", y="late_share")
    assert [(s.label, s.x.tolist()) for s in figure.panels[0].series] == [
        ("mamab-om:T0=5", [10.0, 100.0]),
        ("lane", [10.0]),
    ]
    assert figure.remarks[0] == "left out, without the key: lane"


def test_different_policies_are_never_joined_in_one_line():
    """V in the name of each policy: no two policies share a point, and still each has its own line."""
    policies = ("mamab-om:V=1", "mamab-om:V=10", "mamab-gmba:V=5", "mamab-gmba:V=50")
    rows = [{"policy": p, "seed": s, "late_share": 0.1 * k + 0.01 * s} for k, p in enumerate(policies) for s in (0, 1)]
    figure = layout(pa.Table.from_pylist(rows), x="V", y="late_share")
    (panel,) = figure.panels
    assert {series.label: series.x.tolist() for series in panel.series} == {"mamab-om": [1, 10], "mamab-gmba": [5, 50]}
    panels = layout(pa.Table.from_pylist(rows), x="V", y="late_share", facet="policy").panels
    assert [(panel.title, len(panel.series)) for panel in panels] == [("mamab-om", 1), ("mamab-gmba", 1)]


def rows_table(*cells):
    """A table with two seeds for each cell, given as a policy and further keys."""
    rows = [{"policy": policy, **keys, "seed": s, "late_share": 0.1} for policy, keys in cells for s in (0, 1)]
    return pa.Table.from_pylist(rows)


def test_different_policies_are_never_joined_by_a_line():
    table = rows_table(("mamab-om:V=20", {}), ("lane:V=1", {}), ("lane:V=10", {}))
    figure = layout(table, x="V", y="late_share")
    assert [(s.label, s.x.tolist()) for s in figure.panels[0].series] == [("mamab-om", [20.0]), ("lane", [1.0, 10.0])]
    assert figure.legend == "policy"


def test_every_setting_that_differs_has_its_own_line():
    cells = [("lane", 1.0, 2), ("lane", 2.0, 2), ("lane", 4.0, 3), ("lane", 8.0, 3), ("random", 9.0, 2)]
    names = ("network.deadline_s", "network.channels")
    table = rows_table(*((policy, dict(zip(names, values, strict=True))) for policy, *values in cells))
    figure = layout(table, x="network.deadline_s", y="late_share")
    assert [(s.label, s.colour, s.dash, s.x.tolist()) for s in figure.panels[0].series] == [
        ("lane, network.channels=2", 0, 0, [1.0, 2.0]),
        ("lane, network.channels=3", 0, 1, [4.0, 8.0]),
        ("random, network.channels=2", 1, 0, [9.0]),
    ]
    assert run_style(0, 0)[1:] != run_style(0, 1)[1:]
    assert figure.legend == "policy"
    lane = layout(table.slice(0, 8), x="network.deadline_s", y="late_share")
    assert (lane.legend, [s.label for s in lane.panels[0].series]) == ("network.channels", ["2", "3"])
    given = layout(table, x="network.deadline_s", y="late_share", color="network.channels")
    assert [s.label for s in given.panels[0].series] == ["2, lane", "2, random", "3, lane"]


def test_a_setting_that_changes_at_every_point_of_a_line_is_mentioned():
    cells = [("lane", {"network.clients": 10, "network.channels": 2}), ("lane", {"network.clients": 20})]
    cells[1][1]["network.channels"] = 4
    figure = layout(rows_table(*cells), x="network.clients", y="late_share")
    assert [s.x.tolist() for s in figure.panels[0].series] == [[10.0, 20.0]]
    assert figure.remarks[0] == "network.channels changes with network.clients"


def test_a_sweep_needs_x_and_y(tmp_path):
    pq.write_table(sweep(), tmp_path / "sweep.parquet")
    with pytest.raises(InputError, match="a sweep needs both --x"):
        plot(tmp_path, tmp_path / "a.png")
    names = {"x": "privacy.epsilon", "y": "final_accuracy", "facet": "network.clients"}
    assert plot(tmp_path, tmp_path / "a.png", **names) == ["bands: 95% intervals over 4 seeds"]


def test_rows_with_different_settings_or_the_same_seed_are_never_averaged():
    other_seeds = sweep().filter(pa.compute.less(sweep()["seed"], 2)), sweep(**{"privacy.epsilon": 99.0})
    mixed = pa.concat_tables([other_seeds[0], other_seeds[1].filter(pa.compute.greater(sweep()["seed"], 1))])
    lane = mixed.filter(pa.compute.equal(mixed["policy"], "lane"))
    with pytest.raises(InputError, match=r"runs that differ in privacy\.epsilon would share a point"):
        layout(lane, x="network.clients", y="late_share", color="policy")
    names = {"x": "privacy.epsilon", "y": "late_share", "color": "policy", "facet": "network.clients"}
    with pytest.raises(InputError, match="seed 0 is given twice with the same settings"):
        layout(pa.concat_tables([sweep(), sweep()]), **names)


def test_two_keys_and_a_measure_as_colour_give_a_heat_map():
    lane = sweep().filter(pa.compute.equal(sweep()["policy"], "lane"))
    figure = layout(lane, x="privacy.epsilon", y="network.clients", color="final_accuracy")
    assert (figure.kind, figure.columns, figure.rows) == ("heat", ("1", "4", "8"), ("10", "20"))
    expected = 100 * (0.5 + np.array([[1, 4, 8]]) / 20 + 0.015 + np.array([[10], [20]]) / 1000)
    np.testing.assert_allclose(figure.panels[0].cells, expected)
    assert figure.legend == "final accuracy (%)"
    facets = layout(sweep(), x="privacy.epsilon", y="network.clients", color="final_accuracy", facet="policy")
    assert [panel.title for panel in facets.panels] == ["lane", "mamab-om:V=10"]


def fonts_of(pdf):
    """Decompressed content of a PDF file, to look for fonts."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    parts = [pdf]
    for stream in streams:
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:
            continue
    return b"".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "inches"), [("column", 3.5), ("full", 7.16)])
def test_files_have_their_size_their_fonts_and_no_date(width, inches, tmp_path):
    names = {"x": "privacy.epsilon", "y": "final_accuracy", "facet": "network.clients", "log": "x", "width": width}
    for ending in ("pdf", "svg", "png"):
        plot(sweep(), tmp_path / f"a.{ending}", **names)
        plot(sweep(), tmp_path / f"b.{ending}", **names)
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) == pytest.approx(72 * inches, abs=0.1)
    assert b"CreationDate" not in pdf
    assert b"/FontFile2" in fonts_of(pdf)
    assert b"/Type3" not in fonts_of(pdf)
    svg = (tmp_path / "a.svg").read_text()
    assert float(re.search(r'width="([\d.]+)pt"', svg)[1]) == pytest.approx(72 * inches, abs=0.1)
    assert RUN_COLOURS[1].lower() in svg
    assert "<text" not in svg
    assert "dc:date" not in svg
    png = (tmp_path / "a.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == pytest.approx(300 * inches, abs=1)


def test_the_user_s_matplotlib_settings_do_not_change_a_figure():
    import matplotlib

    figure = layout(sweep(), x="privacy.epsilon", y="final_accuracy", facet="network.clients")
    plain = draw_plot(figure, "svg")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert draw_plot(figure, "svg") == plain
        assert matplotlib.rcParams["font.size"] == 20


def test_texts_stay_inside_the_figure():
    """Also long names of policies, in the legend and on the axis."""
    import matplotlib

    from fedlane.report.plot_drawing import STYLE, _figure

    names = (
        "mamab-om:V=100,quota_slack=0.125,queue_weight=success",
        "mamab-gmba:V=10,exploration=0.25",
        "lane",
        "random",
    )
    rows = [
        {"policy": name, "seed": seed, "network.clients": clients, "late_share": 0.1}
        for name, clients, seed in itertools.product(names, (10, 20), (0, 1))
    ]
    table = pa.Table.from_pylist(rows)
    for request in ({"x": "network.clients"}, {"x": "policy", "color": "network.clients"}):
        with matplotlib.rc_context(STYLE):
            figure = _figure(layout(table, y="late_share", **request), 3.5, "")
            figure.canvas.draw()
            box = figure.get_tightbbox()
        assert box.x0 >= -0.02
        assert box.x1 <= 3.52


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, fedlane.cli, fedlane.report.plotting; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_parameters_of_a_user_s_policy_are_columns_like_those_of_a_built_in_one():
    names = ("lane", "mamab-om:V=10", "my_rules:Patient:V=3,mode=fast", "my_rules:Patient")
    data = table_data(pa.Table.from_pylist([{"policy": name, "seed": 0, "late_share": 0.1} for name in names]))
    assert set(data.keys) == {"policy", "seed", "V", "mode"}
    assert data.keys["V"] == [None, 10.0, 3.0, None]
    assert data.keys["mode"] == [None, None, "fast", None]
