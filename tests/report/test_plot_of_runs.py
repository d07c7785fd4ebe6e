"""Figures for papers of real run folders: curves, points, the command and its errors."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane.intervals import bounded_interval
from fedlane.report import figures, plot
from fedlane.report.plot_data import load_plot_data
from fedlane.report.plot_drawing import RUN_COLOURS, run_style
from fedlane.report.plot_layout import plot_layout
from fedlane.report.plot_request import PlotRequest
from fedlane.report.run_files import read_run
from fedlane.validate import InputError
from support.browsing import save_run
from support.terminal import fedlane

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run folders: two policies that learn, and lane without learning for two budgets; seeds 0 to 2."""
    root = tmp_path_factory.mktemp("plot")
    small = ("network.clients=6", "network.channels=2", "privacy.mechanism=paper")
    for policy in ("random", "lane"):
        save_run(root / "both" / policy, policy=policy, rounds=9, seeds=(0, 1, 2), settings=small)
    for epsilon in (4, 8):
        name = f"epsilon-{epsilon}"
        settings = (*small, f"privacy.epsilon={epsilon}")
        save_run(root / name, rounds=5, seeds=(0, 1, 2), learning=False, settings=settings)
    return root


def layout(folders, **names):
    return plot_layout(load_plot_data(folders), PlotRequest(**names))


def test_a_run_is_drawn_as_accuracy_over_simulated_time(folder):
    figure = layout([folder / "both" / "lane"])
    assert (figure.kind, figure.x_label, figure.y_label) == ("curves", "simulated time (s)", "test accuracy (%)")
    (series,) = figure.panels[0].series
    rounds = read_run(folder / "both" / "lane").tables["rounds"]
    clock_s, values = (rounds[name].to_numpy().reshape(3, 9)[:, 2::3] for name in ("clock_s", "accuracy"))
    np.testing.assert_allclose(series.x, clock_s.mean(axis=0))
    low, mean, high = bounded_interval(values, (0.0, 1.0))
    np.testing.assert_allclose([series.low, series.mean, series.high], 100 * np.array([low, mean, high]))
    assert figure.remarks == ("bands: 95% intervals over 3 seeds",)
    assert figure.legend is None


def test_a_comparison_has_a_colour_per_policy_as_on_the_page(folder):
    figure = layout([folder / "both"])
    assert [(series.label, series.colour) for series in figure.panels[0].series] == [("lane", 0), ("random", 1)]
    assert figure.legend == "policy"
    script = (Path(figures.__file__).parent / "assets" / "format.js").read_text()
    order = json.loads(re.search(r"RUN_COLOURS = (\[[\d, ]+\])", script)[1])
    assert tuple(figures.COLOURS[k] for k in order) == RUN_COLOURS
    assert run_style(7)[0] == run_style(0)[0]
    assert run_style(7)[1] != run_style(0)[1]


@pytest.mark.parametrize("column", ["delay_s", "punctual", "loss", "accuracy"])
def test_every_column_of_rounds_can_be_drawn_over_rounds(column, folder):
    series = layout([folder / "both"], x="round", y=column).panels[0].series[0]
    assert series.x[-1] == 9
    assert np.isfinite(series.mean).all()


def test_a_measure_of_runs_over_a_scenario_key(folder):
    folders = [folder / "epsilon-8", folder / "epsilon-4"]
    figure = layout(folders, x="privacy.epsilon", y="cumulative_delay_s")
    (series,) = figure.panels[0].series
    assert (figure.kind, series.x.tolist()) == ("line", [4.0, 8.0])
    for name, mean, low in zip(("epsilon-4", "epsilon-8"), series.mean, series.low, strict=True):
        summary = read_run(folder / name).summary["cumulative_delay_s"]
        assert (mean, low) == (pytest.approx(summary["mean"]), pytest.approx(summary["low"]))


def test_the_time_to_the_target_and_the_epsilon_of_a_run_can_be_drawn(folder, tmp_path):
    save_run(tmp_path / "lane", rounds=18, seeds=(0, 1, 2), settings=("learning.target_accuracy=0.12",))
    summary = read_run(tmp_path / "lane").summary
    assert summary["time_to_accuracy"]["reached"] > 0
    (series,) = layout([tmp_path / "lane"], y="time_to_accuracy_s").panels[0].series
    assert series.mean[0] == pytest.approx(summary["time_to_accuracy"]["mean"])
    assert int(series.seeds[0]) == summary["time_to_accuracy"]["reached"]
    (series,) = layout([tmp_path / "lane"], y="epsilon").panels[0].series
    epsilon = read_run(tmp_path / "lane").tables["clients"]["epsilon"].to_numpy().reshape(3, -1)
    assert series.mean[0] == pytest.approx(epsilon.max(axis=1).mean())
    (series,) = layout([tmp_path / "lane"], y="problem_shortfall").panels[0].series
    assert series.mean[0] > 0


def test_policies_are_points_with_bars(folder):
    figure = layout([folder / "both"], y="final_accuracy")
    assert (figure.kind, figure.columns, figure.legend) == ("points", ("lane", "random"), None)
    assert [series.x.tolist() for series in figure.panels[0].series] == [[0.0], [1.0]]
    assert figure.remarks == ("bars: 95% intervals over 3 seeds",)


def test_seeds_on_the_axis_have_no_interval(folder):
    figure = layout([folder / "both"], x="seed", y="final_accuracy")
    assert figure.columns == ("0", "1", "2")
    assert figure.remarks == ("one seed: no interval",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"y": "acuracy"}, "unknown measure 'acuracy' (did you mean 'accuracy'?)"),
        ({"y": "time"}, "unknown measure 'time' (did you mean 'time_to_accuracy_s'?)"),
        ({"y": "delay"}, "unknown measure 'delay' (did you mean 'delay_s' or 'cumulative_delay_s'?)"),
        ({"y": "feasible_scale"}, "feasible_scale describes the network, not a policy"),
        ({"y": "time_to_accuracy_s"}, "no run has a value of time_to_accuracy_s: the runs have no target accuracy"),
        ({"y": "xyz"}, "unknown measure 'xyz': choose from round, delay_s, clock_s"),
        (
            {"x": "privacy.epsilom", "y": "late_share"},
            "unknown key 'privacy.epsilom' (did you mean 'privacy.epsilon'?)",
        ),
        ({"color": "polcy"}, "unknown key 'polcy' (did you mean 'policy'?)"),
        ({"facet": "xyz"}, "unknown key 'xyz': choose from policy, seed"),
        ({"x": "policy"}, "accuracy is recorded in every round: draw it over clock_s or round"),
        ({"x": "clock_s", "y": "late_share"}, "late_share is a measure of whole runs"),
        ({"x": "policy", "y": "seed"}, "--y must be a measure, got the key 'seed'; a heat map"),
    ],
)
def test_wrong_names_are_refused_with_the_nearest(names, message, folder):
    with pytest.raises(InputError, match=re.escape(message)):
        layout([folder / "both"], **names)


def test_runs_with_different_settings_are_never_averaged(folder):
    folders = [folder / "both" / "lane", folder / "both" / "random"]
    with pytest.raises(InputError, match=r"runs that differ in policy.* would share a point: use --color or --facet"):
        layout(folders, x="privacy.epsilon", y="late_share", color="data.partition")


def test_runs_and_sweeps_are_not_mixed(tmp_path, folder):
    pq.write_table(pa.table({"policy": ["lane"], "seed": [0], "late_share": [0.5]}), tmp_path / "sweep.parquet")
    with pytest.raises(InputError, match="runs and sweeps cannot be drawn in one figure"):
        plot([tmp_path, folder / "both"], tmp_path / "a.png")


def test_runs_without_learning_have_no_accuracy(folder):
    with pytest.raises(InputError, match="no run has a value of accuracy: the runs did not learn"):
        layout([folder / "epsilon-4"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "a.gif"), "figure a.gif must end in .pdf, .svg or .png"),
        (("--out", "nowhere/a.pdf"), "figure nowhere/a.pdf cannot be written: No such file or directory"),
        (("--out", "a.pdf", "--y", "acuracy"), "unknown measure 'acuracy' (did you mean 'accuracy'?)"),
        (("--out", "a.pdf", "--width", "wide"), "Invalid value for '--width'"),
        (("--out", "a.pdf", "--y", "late_share", "--log", "x"), "categories have no logarithmic scale"),
        ((), "Missing option '--out'"),
    ],
)
def test_bad_options_of_the_command_are_one_line(options, message, folder, tmp_path):
    result = fedlane("plot", folder / "both", *options, cwd=tmp_path, code=2)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_figure_and_says_what_its_bands_are(folder, tmp_path):
    result = fedlane("plot", folder / "both", "--out", "a.pdf", cwd=tmp_path, code=0)
    assert result.stdout == "Wrote a.pdf\n"
    assert result.stderr == "Note: bands: 95% intervals over 3 seeds.\n"
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    quiet = fedlane("plot", folder / "both", "--y", "late_share", "--out", "b.svg", "--quiet", cwd=tmp_path, code=0)
    assert (quiet.stdout, quiet.stderr) == ("", "")
