"""Comparisons: the values, the paired intervals, the files, and how they are opened again."""

import csv
import json
import re

import numpy as np
import pytest
from rich.console import Console

from fedlane.intervals import bounded_interval, difference_bounds, interval, measure_bounds, student_interval
from fedlane.report.comparison import FIELDS, TIME, ComparedRun, comparison
from fedlane.report.comparison_tables import comparison_tables
from fedlane.report.latex import escape_latex, latex_table
from fedlane.report.page_data import page_data
from fedlane.report.run_files import read_run, run_folders
from fedlane.report.seed_measures import COMPARED, MEASURES, problem_shortfall, seed_measures
from fedlane.validate import InputError
from support.terminal import fedlane

OPTIONS = ("--policy", "random", "--policy", "lane:V=10", "--rounds", "15", "--no-learning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a comparison of two policies on three seeds; the baseline is not the first by name."""
    root = tmp_path_factory.mktemp("comparison")
    fedlane("compare", "paper-fmnist", *OPTIONS, "--seeds", "3", "--quiet", "--out", "o", cwd=root, code=0)
    return root / "o"


def compared(policy, seeds, *, scenario="s", rounds=10, folder=None, flower=False, **values):
    """A run with the given values per seed; the measures that are not given are 0.5 on each seed."""
    names = (*MEASURES, "problem_shortfall")
    arrays = {name: np.asarray(values.get(name, [0.5] * len(seeds)), float) for name in names}
    arrays |= {name: np.asarray(array, float) for name, array in values.items()}
    summary = {"policy": policy, "scenario": scenario, "rounds": rounds, "seeds": list(seeds)}
    summary |= {name: interval(array[~np.isnan(array)], measure_bounds(name)) for name, array in arrays.items()}
    summary["feasible_scale"] = {"mean": None, "low": None, "high": None}
    if TIME in arrays:
        reached = int((~np.isnan(arrays[TIME])).sum())
        summary["time_to_accuracy"] = {"target": 0.7, "reached": reached, **summary[TIME]}
    if flower:
        summary["flower"] = {}
    return ComparedRun(summary, arrays, folder)


def test_the_values_of_the_seeds_are_those_that_the_summary_averages(folder):
    for name in ("random", "lane-V-10"):
        run = read_run(folder / name)
        values = seed_measures(run.tables)
        assert list(values) == [*MEASURES, "energy_j"]
        for measure in MEASURES:
            if measure == "final_accuracy":
                assert np.isnan(values[measure]).all()
            else:
                found = interval(values[measure], measure_bounds(measure))
                assert found == pytest.approx(run.summary[measure], rel=1e-6, abs=1e-9)


def test_compare_saves_json_csv_and_tex(folder):
    saved = json.loads((folder / "comparison.json").read_text())
    assert (saved["baseline"], saved["seeds"], saved["target_accuracy"]) == ("random", [0, 1, 2], None)
    random, lane = saved["runs"]
    assert (random["folder"], lane["folder"]) == ("random", "lane-V-10")
    assert random["differences"] is None
    first, second = (np.array(run["seed_values"]["cumulative_delay_s"]) for run in (random, lane))
    low, mean, high = student_interval(second - first)
    expected = {"mean": mean, "low": low, "high": high, "pairs": 3}
    assert lane["differences"]["cumulative_delay_s"] == pytest.approx(expected)
    rows = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert tuple(rows[0]) == FIELDS
    assert {row["measure"] for row in rows} == {*COMPARED, "energy_j", "feasible_scale", "delay_over_optimum"}
    (row,) = [r for r in rows if (r["policy"], r["measure"]) == ("lane:V=10", "cumulative_delay_s")]
    assert (float(row["difference"]), float(row["difference_low"])) == (pytest.approx(mean), pytest.approx(low))
    assert (row["baseline"], row["pairs"], row["seeds"]) == ("random", "3", "3")
    assert r"\begin{tabular}" in (folder / "comparison.tex").read_text()


def test_shortfalls_are_compared_against_the_same_quotas(folder):
    """The policy lane serves lower quotas than random; the problem's quotas are those that random serves."""
    random, lane = (read_run(folder / name) for name in ("random", "lane-V-10"))
    quota = random.tables["clients"]["quota"].to_numpy()
    served = lane.tables["clients"]["quota"].to_numpy()
    np.testing.assert_allclose(served, 0.875 * quota)
    short = (quota - lane.tables["clients"]["participation"].to_numpy()).reshape(3, -1)
    expected = np.maximum(short, 0).max(axis=1)
    np.testing.assert_allclose(problem_shortfall(lane.tables, lane.summary), expected)
    saved = json.loads((folder / "comparison.json").read_text())
    assert saved["runs"][1]["problem_shortfall"]["mean"] == pytest.approx(expected.mean())
    assert saved["runs"][1]["quota_shortfall"] == lane.summary["quota_shortfall"]
    assert saved["runs"][1]["quota_shortfall"]["mean"] < expected.mean()
    differences = saved["runs"][1]["differences"]
    assert "quota_shortfall" not in differences
    base = problem_shortfall(random.tables, random.summary).mean()
    assert differences["problem_shortfall"]["mean"] == pytest.approx(expected.mean() - base)
    assert "Largest shortfall from the problem's quotas" in (folder / "comparison.tex").read_text()
    shown = fedlane("show", folder, cwd=folder, code=0).stdout
    assert re.search(rf"lane:V=10 .* {expected.mean():.3f} *$", shown, re.MULTILINE)
    runs = page_data(run_folders([folder]))["runs"]
    assert [run["slack"] for run in runs] == [0.0, 0.125]
    assert runs[1]["measures"]["problem_shortfall"]["mean"] == pytest.approx(expected.mean())


def test_show_prints_the_comparison_again(tmp_path, folder):
    shown = fedlane("show", folder, cwd=tmp_path, code=0)
    assert "difference from random" in shown.stdout
    assert json.loads(fedlane("show", folder, "--json", cwd=tmp_path).stdout) == json.loads(
        (folder / "comparison.json").read_text()
    )
    again = fedlane("compare", "paper-fmnist", *OPTIONS, "--seeds", "3", "--out", "again", cwd=tmp_path, code=0)
    assert again.stdout == shown.stdout + "Saved to again\n"


def test_a_report_shows_the_runs_in_the_order_of_the_comparison(folder):
    folders = run_folders([folder])
    assert [path.name for path in folders] == ["random", "lane-V-10"]
    assert [run["name"] for run in page_data(folders)["runs"]] == ["random", "lane:V=10"]


@pytest.mark.parametrize("text", ["", "[1]", '{"runs": []}', '{"runs": [{}]}', "[" * 100_000, '{"runs": 3}'])
def test_a_damaged_comparison_is_one_line(text, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "comparison.json").write_text(text)
    result = fedlane("show", "o", cwd=tmp_path, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedlane: o/comparison.json ")


def test_pairs_are_the_common_seeds_of_runs_of_one_network():
    base = compared("a", [0, 1, 2], mean_round_s=[1, 2, 3])
    runs = [
        base,
        compared("b", [2, 1, 7], mean_round_s=[4, 2, 100]),
        compared("c", [5, 6], mean_round_s=[1, 2]),
        compared("d", [0, 1, 2], scenario="other"),
        compared("e", [0, 1, 2], rounds=20),
        compared("f", [0, 1, 2], flower=True),
    ]
    content = comparison(runs)
    differences = [run["differences"] for run in content["runs"]]
    low, mean, high = student_interval(np.array([1.0, 0.0]))
    assert differences[1]["mean_round_s"] == pytest.approx({"mean": mean, "low": low, "high": high, "pairs": 2})
    for other in differences[2:]:
        assert other["mean_round_s"] == {"mean": None, "low": None, "high": None, "pairs": 0}


def test_intervals_stay_within_the_range_of_their_measure():
    first = compared("a", [0, 1], late_share=[0.0, 0.02], final_accuracy=[0.9, 1.0], cumulative_delay_s=[1, 9])
    second = compared("b", [0, 1], late_share=[0.1, 0.9], final_accuracy=[0.1, 0.8], cumulative_delay_s=[9, 1])
    run = comparison([first, second])["runs"][1]
    assert (run["late_share"]["low"], run["late_share"]["high"]) == (0.0, 1.0)
    assert run["cumulative_delay_s"]["low"] == 0.0
    assert run["cumulative_delay_s"]["high"] == pytest.approx(5 + 12.7062 * 4, rel=1e-4)
    assert (run["differences"]["late_share"]["low"], run["differences"]["late_share"]["high"]) == (-1.0, 1.0)
    assert run["differences"]["cumulative_delay_s"]["low"] < -50  # a difference of times has no range


def test_cutting_an_interval_off_at_the_range_does_not_change_its_coverage():
    """Of the means that are possible, the cut interval covers exactly those that the Student interval covers."""
    rng = np.random.default_rng(0)
    values = rng.beta(0.6, 5.0, size=(4, 5000))  # shares near 0; mean 0.6 / 5.6
    low, _, high = student_interval(values)
    cut_low, mean, cut_high = bounded_interval(values, (0.0, 1.0))
    truth = 0.6 / 5.6
    assert (low < 0).mean() > 0.2
    assert cut_low.min() == 0.0
    assert cut_high.max() <= 1.0
    np.testing.assert_array_equal((low <= truth) & (truth <= high), (cut_low <= truth) & (truth <= cut_high))
    assert ((cut_low <= mean) & (mean <= cut_high)).all()


@pytest.mark.parametrize(
    ("measure", "bounds"),
    [("late_share", (0, 1)), ("final_accuracy", (0, 1)), ("max_queue", (0, np.inf)), (TIME, (0, np.inf))],
)
def test_ranges(measure, bounds):
    assert measure_bounds(measure) == bounds
    assert difference_bounds(bounds) == (-bounds[1], bounds[1])


def test_one_seed_has_no_interval_and_says_so(tmp_path):
    result = fedlane("compare", "paper-fmnist", *OPTIONS, "--seed", "4", "--out", "o", cwd=tmp_path, code=0)
    assert "one seed: no interval" in result.stdout
    saved = json.loads((tmp_path / "o" / "comparison.json").read_text())
    for measure in (saved["runs"][0]["late_share"], saved["runs"][1]["differences"]["late_share"]):
        assert measure["mean"] is not None
        assert (measure["low"], measure["high"]) == (None, None)
    assert "a single seed has no interval" in (tmp_path / "o" / "comparison.tex").read_text()


def test_a_run_from_elsewhere_is_compared_on_its_common_seeds(tmp_path):
    common = ("paper-fmnist", "--rounds", "15", "--no-learning", "--quiet")
    fedlane("run", *common, "--policy", "round-robin", "--seeds", "2", "--out", "other", cwd=tmp_path, code=0)
    options = ("--policy", "random", "--seeds", "3", "--with", "other", "--out", "o")
    fedlane("compare", *common, *options, cwd=tmp_path, code=0)
    run = json.loads((tmp_path / "o" / "comparison.json").read_text())["runs"][1]
    assert (run["policy"], run["folder"]) == ("round-robin (other)", None)
    assert run["differences"]["late_share"]["pairs"] == 2
    assert " round-robin" in fedlane("show", "o", cwd=tmp_path, code=0).stdout  # the rest of its name is folded


def test_a_folder_of_a_comparison_that_cannot_be_written_is_refused(tmp_path):
    from fedlane.report.comparison import write_comparison

    with pytest.raises(InputError, match=r"nowhere/comparison\.csv cannot be written: No such file"):
        write_comparison(comparison([compared("a", [0])]), tmp_path / "nowhere")


def printed(content):
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(comparison_tables(content))
    return capture.get()


def test_the_tables_fit_80_columns_with_a_target_and_large_numbers():
    names = ("lane", "mamab-om:V=10,quota_slack=0.125,queue_weight=success")
    runs = [
        compared(
            name,
            [0, 1, 2],
            cumulative_delay_s=[31_234.5 + 900 * k, 29_876.1 - 3000 * k, 27_999.0],
            time_to_accuracy_s=[21_234.5, 19_876.1 - 2000 * k, np.nan if k else 17_999.0],
            late_share=[0.0, 0.9, 1.0] if k else [1.0, 0.0, 0.1],
            final_accuracy=[0.1, 0.2, 0.9],
            problem_shortfall=[0.3214] * 3,
        )
        for k, name in enumerate(names)
    ]
    text = printed(comparison(runs))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "2 of 3" in text
    folded = text.replace("\n", " ")
    assert all(word in folded for word in ("29,703", "0.400", "0.321"))


@pytest.mark.slow
def test_compare_with_learning_and_a_target_fits_80_columns(tmp_path):
    options = ("--policy", "lane", "--policy", "random", "--rounds", "12", "--seeds", "2", "--target", "0.2")
    fast = ("--set", "learning.evaluate_every=2", "--set", "network.clients=6", "--set", "network.channels=2")
    result = fedlane("compare", "quickstart", *options, *fast, "--out", "o", cwd=tmp_path, code=0)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("time to accuracy 0.2") for line in lines)
    assert not any("…" in line for line in lines)
    saved = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert saved["target_accuracy"] == 0.2
    assert len(saved["runs"][1]["seed_values"][TIME]) == 2
    assert any(
        row["measure"] == TIME for row in csv.DictReader((tmp_path / "o" / "comparison.csv").read_text().splitlines())
    )


@pytest.mark.slow
def test_compare_and_show_print_the_energy_of_all_clients_and_its_difference(tmp_path):
    options = ("--policy", "lane", "--policy", "random", "--rounds", "10", "--seeds", "2", "--no-learning")
    result = fedlane("compare", "phones", *options, "--out", "o", cwd=tmp_path, code=0)
    saved = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert "energy_j" in saved["measures"]
    lane, random = saved["runs"]
    (line,) = [
        row for row in result.stdout.splitlines() if row.split()[:2] == ["random", f"{random['energy_j']['mean']:,.1f}"]
    ]
    difference = random["differences"]["energy_j"]["mean"]
    assert difference == pytest.approx(random["energy_j"]["mean"] - lane["energy_j"]["mean"])
    shown = round(difference, 1) + 0.0  # -0.0 is shown as +0.0
    assert f"{shown:+,.1f} [" in line or f"{difference:+,.0f} [" in line
    assert max(map(len, result.stdout.splitlines())) <= 80
    rows = list(csv.DictReader((tmp_path / "o" / "comparison.csv").read_text().splitlines()))
    assert {row["unit"] for row in rows if row["measure"] == "energy_j"} == {"J"}
    assert "Energy (J)" in (tmp_path / "o" / "comparison.tex").read_text()
    assert "energy of all clients" in fedlane("show", "o", cwd=tmp_path, code=0).stdout
    shown = fedlane("show", "o/lane", cwd=tmp_path, code=0).stdout
    assert re.search(rf"energy of all clients.*{lane['energy_j']['mean']:,.1f} J", shown)


HOSTILE = r"a&b%c$d#e_f{g}h~i^j\k<l>m|n\"o é ∑"


def test_names_are_escaped_for_latex():
    escaped = escape_latex(HOSTILE)
    plain = re.sub(r"\\[a-z]+\{\}|\\[&%$#_{}]", "", escaped)
    assert not set(plain) & set('&%$#_{}~^\\<>|"')
    assert escaped.isascii()
    assert escaped.startswith(r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k")
    assert escape_latex("mamab-om:V=10,T0=5") == r"mamab-om:\allowbreak{}V=10,\allowbreak{}T0=5"


def rows_of(table):
    """Cells of the rows between \\midrule and \\bottomrule of a LaTeX table."""
    body = table.split(r"\midrule")[1].split(r"\bottomrule")[0]
    lines = [line for line in body.strip().splitlines() if line != r"\addlinespace"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in lines]


def latex_content():
    values = {"cumulative_delay_s": [1234.5, 1300.25, 1287.0], TIME: [500.0, 620.0, np.nan]}
    other = {"cumulative_delay_s": [1834.5, 1801.25, 1987.0], TIME: [900.0, 1020.0, 800.0], "late_share": [0.1, 0.2, 0]}
    return comparison([compared(HOSTILE, [0, 1, 2], **values), compared("mamab-om:V=10,T0=5", [0, 1, 2], **other)])


def test_the_latex_table_is_well_formed():
    """Balanced braces and environments, five columns in every row, formulas that a TeX parser accepts."""
    from matplotlib.mathtext import MathTextParser

    table = latex_table(latex_content())
    bare = re.sub(r"\\[{}\\]", "", table)
    depth = np.cumsum([(c == "{") - (c == "}") for c in bare])
    assert depth.min() == 0
    assert depth[-1] == 0
    assert re.findall(r"\\begin\{(\w+)\}", table) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", table) == ["tabular", "table"]
    for cells in rows_of(table):
        if cells[0].startswith(r"\multicolumn{5}"):
            assert len(cells) == 1
        else:
            assert len(cells) == 5
            assert cells[0].startswith(r"\raggedright ")
    formulas = re.findall(r"(?<!\\)\$[^$]*(?<!\\)\$", table)
    assert len(formulas) > 30
    parser = MathTextParser("path")
    for formula in formulas:
        parser.parse(formula)
    commands = set(re.findall(r"\\([a-zA-Z]+)", table))
    booktabs = {"toprule", "midrule", "bottomrule", "addlinespace"}
    latex = {"begin", "end", "centering", "caption", "label", "footnotesize", "setlength", "tabcolsep", "columnwidth"}
    latex |= {"multicolumn", "emph", "raggedright", "allowbreak", "usepackage"}
    latex |= {f"text{name}" for name in ("asciitilde", "asciicircum", "backslash", "less", "greater", "bar")}
    assert commands <= booktabs | latex


def test_the_latex_table_shows_the_numbers_of_the_comparison():
    table = latex_table(latex_content())
    (heading,) = [k for k, cells in enumerate(rows_of(table)) if "Cumulative delay (s)" in cells[0]]
    first, second = rows_of(table)[heading + 1 : heading + 3]
    low, mean, high = student_interval(np.array([1234.5, 1300.25, 1287.0]))
    assert first[1].strip() == f"${mean:.0f}$"
    assert first[2].strip() == f"$[{low:.0f},\\, {high:.0f}]$"
    low, mean, high = student_interval(np.array([600.0, 501.0, 700.0]))
    assert second[3].strip() == f"${mean:+.0f}$"
    assert second[4].strip() == f"$[{low:.0f},\\, {high:.0f}]$"
    assert "Time to accuracy 70\\%" in table
    assert "(2 of 3 seeds)" in table


@pytest.mark.slow
def test_the_latex_table_fits_a_column():
    """Widths are those of Computer Modern at 8 pt (\\footnotesize of a 10 pt paper), in a column of 3.5 in."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    def width(cell):
        text = re.sub(r"\\,", "", cell).replace("$", "").strip()
        return TextPath((0, 0), text, size=8, prop=FontProperties(family="cmr10")).get_extents().width if text else 0.0

    cells = [row for row in rows_of(latex_table(latex_content())) if len(row) == 5]
    columns = [max(width(row[k]) for row in cells) for k in range(1, 5)]
    # @{}p r@{\ }l r@{\ }l@{}: two gaps of 2 tabcolsep (3 pt), two spaces (2.7 pt), and a thin space per interval
    needed = 0.27 * 252 + sum(columns) + 2 * 6 + 2 * 2.7 + 2 * 1.4
    assert needed <= 252
