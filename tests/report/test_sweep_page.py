"""A sweep's folder on the report page and in the terminal: its cells, their intervals, and clear refusals."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedlane
from fedlane.intervals import bounded_interval
from fedlane.number_text import number_text
from fedlane.report.page import build_page
from fedlane.report.sweep_cells import cells_json, cells_table, read_sweep, sweep_cells
from fedlane.report.sweep_page import sweep_page_data
from fedlane.validate import InputError
from support.browsing import Tab
from support.terminal import fedlane as command

GRID = {"network.channels": [4, 2], "network.deadline_s": [2.0, 3.0, 5.0], "data.partition": ["iid", "shards"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep over two numeric keys and a text, under two policies, with three seeds."""
    out = tmp_path_factory.mktemp("sweep") / "grid"
    fedlane.sweep("quickstart", ["lane", "random"], GRID, seeds=3, rounds=5, learning=False, out=out)
    return out


def row(policy, seed, late, **keys):
    return {
        **{name.replace("__", "."): value for name, value in keys.items()},
        "policy": policy,
        "seed": seed,
        "late_share": late,
    }


class TestCells:
    def test_a_cell_has_the_mean_and_the_interval_of_its_seeds(self):
        rows = [row("lane", seed, late, a__b=1.0) for seed, late in enumerate((0.1, 0.2, 0.4))]
        cells = sweep_cells(pa.Table.from_pylist([*rows, row("random", 0, 0.5, a__b=1.0)]))
        assert (cells.keys, cells.seeds) == ({"a.b": [1.0, 1.0], "policy": ["lane", "random"]}, [3, 1])
        low, mean, high = bounded_interval(np.array([0.1, 0.2, 0.4]), (0.0, 1.0))
        assert cells.measures["late_share"][0] == {"mean": mean, "low": low, "high": high}
        assert cells.measures["late_share"][1] == {"mean": 0.5, "low": None, "high": None}

    def test_a_measure_without_values_is_left_out(self, folder):
        assert "final_accuracy" not in read_sweep(folder).cells.measures

    def test_missing_values_of_some_seeds_do_not_count(self):
        cells = sweep_cells(pa.Table.from_pylist([row("lane", 0, 0.25), row("lane", 1, None)]))
        assert cells_json(cells) == [
            {"policy": "lane", "seeds": 2, "late_share": {"mean": 0.25, "low": None, "high": None}}
        ]

    def test_the_terminal_rounds_as_the_page_does(self):
        cells = sweep_cells(pa.Table.from_pylist([row("lane", 0, 0.0095)]))
        assert [*cells_table(cells).columns[1].cells] == ["1.0"]


class TestPageData:
    def test_the_page_holds_every_cell(self, folder):
        sweep = sweep_page_data(folder)["sweep"]
        keys = {key["name"]: (key["values"], key["numbers"]) for key in sweep["keys"]}
        assert keys == {
            "network.channels": (["2", "4"], [2.0, 4.0]),  # in ascending order
            "network.deadline_s": (["2", "3", "5"], [2.0, 3.0, 5.0]),
            "data.partition": (["iid", "shards"], None),
            "policy": (["lane", "random"], None),
        }
        assert (sweep["cells"], sweep["seeds"], sweep["seeds_text"]) == (24, [3] * 24, "seeds 0 to 2")
        assert (sweep["index"]["shape"], sweep["numbers"]["shape"]) == ([4, 24], [7, 24, 3])
        assert "deadline_s = 5.0" in sweep["toml"]

    @pytest.mark.slow
    def test_a_sweep_that_is_too_large_for_a_page_is_one_line(self, tmp_path):
        values = np.arange(40_000.0)
        table = pa.table({"a.b": values, "policy": ["lane"] * 40_000, "seed": [0] * 40_000})
        for name in ("late_share", "max_queue", "min_participation", "mean_round_s"):
            table = table.append_column(name, pa.array(values / 1e5))
        pq.write_table(table, tmp_path / "sweep.parquet")
        with pytest.raises(InputError, match=r"the page of these 40,000 cells would take .* MB, more than the limit"):
            sweep_page_data(tmp_path)

    @pytest.mark.parametrize(
        ("name", "content", "line"),
        [
            ("sweep.json", b"[", "sweep.json is damaged"),
            ("sweep.json", b"[]", "sweep.json was not written by FedLane"),
            ("sweep.json", b"[" * 100_000, "sweep.json is damaged"),
            ("failures.json", b"[1]", "failures.json was not written by FedLane"),
            ("sweep.parquet", b"PAR1", "sweep.parquet is damaged"),
        ],
    )
    def test_damaged_files_are_one_line(self, name, content, line, folder, tmp_path):
        for file in folder.glob("sweep.*"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / name).write_bytes(content)
        for arguments in (("report", "."), ("show", ".")):
            (printed,) = command(*arguments, cwd=tmp_path, code=2).stderr.splitlines()
            assert line in printed

    def test_tables_of_other_shapes_are_one_line(self, tmp_path):
        twice = pa.Table.from_arrays(
            [pa.array(["lane"]), pa.array([0]), pa.array([0.5]), pa.array([0.5])], ["policy", "seed", "a.b", "a.b"]
        )
        for table, line in (
            (twice, "a.b"),
            (pa.table({"policy": ["lane"], "late_share": [0.5]}), "column seed is missing"),
            (pa.table({"policy": pa.array([], pa.string()), "seed": pa.array([], pa.int64())}), "has no rows"),
        ):
            pq.write_table(table, tmp_path / "sweep.parquet")
            for arguments in (
                ("report", "."),
                ("show", "."),
                ("plot", ".", "--x", "a.b", "--y", "v", "--out", "f.pdf"),
            ):
                result = command(*arguments, cwd=tmp_path, code=2)
                assert len(result.stderr.splitlines()) == 1
                assert line in result.stderr or arguments[0] == "plot"


class TestCommands:
    def test_report_writes_the_page_of_a_sweep(self, folder, tmp_path):
        result = command("report", str(folder), "--out", "page.html", cwd=tmp_path, code=0)
        assert "(a sweep of 24 cells, " in result.stdout
        assert "<title>quickstart · FedLane</title>" in (tmp_path / "page.html").read_text()

    def test_show_prints_cells_with_their_intervals(self, folder, tmp_path):
        shown = command("show", str(folder), cwd=tmp_path, code=0).stdout
        assert "95% interval over seeds" in shown
        content = json.loads(command("show", str(folder), "--json", cwd=tmp_path, code=0).stdout)
        assert content["failures"] == []
        assert content["cells"] == cells_json(read_sweep(folder).cells)

    @pytest.mark.slow
    def test_failures_are_counted(self, tmp_path):
        options = ("--grid", "network.clients=10,12", "--grid", f"compute.cycles_per_sample={[1e5] * 10},1e5")
        sweep = ("sweep", "quickstart", "--rounds", "3", "--no-learning", *options, "--out", "s", "--quiet")
        command(*sweep, cwd=tmp_path, code=1)
        assert "1 cell failed; see s/failures.json" in command("show", "s", cwd=tmp_path, code=0).stderr
        data = sweep_page_data(tmp_path / "s")["sweep"]
        assert (data["failed"], data["failures"][0]["policy"]) == (1, "lane")
        assert data["failures"][0]["error"].startswith("compute.cycles_per_sample must")

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (("report", "grid", "grid"), "a page shows one sweep: give its folder alone"),
            (("watch", "grid", "--no-open"), "holds a sweep, and watch follows runs: fedlane report"),
            (("report", "begun"), "has no sweep.parquet yet"),
        ],
    )
    def test_what_a_page_cannot_show_is_one_line(self, arguments, line, folder, tmp_path):
        (tmp_path / "begun").mkdir()
        (tmp_path / "begun" / "sweep.json").write_text("{}")
        (tmp_path / "grid").symlink_to(folder)
        (printed,) = command(*arguments, cwd=tmp_path, code=2).stderr.splitlines()
        assert line in printed


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
class TestBrowser:
    @pytest.fixture(scope="class")
    def url(self, folder, tmp_path_factory):
        path = tmp_path_factory.mktemp("page") / "page.html"
        path.write_text(build_page(sweep_page_data(folder)))
        return path.as_uri()

    def lines(self, tab):
        return tab.page.locator("#explore figure").first

    def test_axes_can_be_chosen_and_the_numbers_are_those_of_the_table(self, browser, url, folder):
        with Tab(browser, url) as tab:
            choose = lambda name, label: tab.page.locator(f"#choose-{name}").select_option(label=label)  # noqa: E731
            choose("measure", "late uploads")
            choose("x", "network.deadline_s")
            choose("series", "network.channels")
            tab.page.locator("#fix-2").select_option(label="shards")
            tab.page.locator("#fix-3").select_option(label="random")
            figure = self.lines(tab)
            assert (
                "for each network.channels. Bands: 95% intervals over 3 seeds." in figure.locator(".note").inner_text()
            )
            assert "Shown for data.partition = shards and random." in figure.locator(".note").inner_text()
            assert figure.locator("svg path.line").count() == 2
            figure.locator("summary").click()
            figure.locator("tbody tr").first.wait_for()
            rows = [tuple(r.locator("th, td").all_inner_texts()) for r in figure.locator("tbody tr").all()]
            expected = [
                cell
                for cell in cells_json(read_sweep(folder).cells)
                if (cell["data.partition"], cell["policy"]) == ("shards", "random")
            ]
            assert len(rows) == len(expected) == 6
            for cell in expected:
                late = cell["late_share"]
                mean, low, high = (number_text(100 * late[part], "{:.1f}") for part in ("mean", "low", "high"))
                interval = f"[{low}, {high}]" if low != high else "\u2013"
                name, x = (
                    f"network.channels = {cell['network.channels']:g}",
                    f"network.deadline_s = {cell['network.deadline_s']:g}",
                )
                assert (name, x, f"{mean}%", interval) in rows
            assert (tab.errors, len(tab.requests)) == ([], 1)

    def test_the_heat_map_reads_its_values(self, browser, url):
        with Tab(browser, url) as tab:
            picture = tab.page.locator("#explore figure").nth(1).locator(".plot svg")
            assert picture.locator("rect.heat-cell").count() == 2 * 2  # the first key on the x axis, rows are policies
            picture.hover(position={"x": 300, "y": 20})
            assert "seeds" in tab.page.locator("#tip").inner_text()
            picture.focus()
            for key in ("ArrowRight", "ArrowDown"):
                tab.page.keyboard.press(key)
            assert (
                tab.page.locator("#spoken")
                .inner_text()
                .startswith(("random, network.channels", "lane, network.channels"))
            )
            assert tab.errors == []

    def test_a_text_on_the_x_axis_gives_dots_with_whiskers(self, browser, url):
        with Tab(browser, url) as tab:
            tab.page.locator("#choose-x").select_option(label="data.partition")
            figure = self.lines(tab)
            assert figure.locator("svg path.line").count() == 0
            assert figure.locator("svg circle.dot").count() == 4
            assert "Whiskers: 95% intervals" in figure.locator(".note").inner_text()
            assert tab.errors == []

    def test_a_logarithmic_axis_has_its_ticks_at_the_values(self, browser, url):
        with Tab(browser, url) as tab:
            tab.page.locator("#choose-x").select_option(label="network.deadline_s")
            tab.page.locator("#choose-log").check()
            texts = self.lines(tab).locator("svg .axes text").all_text_contents()
            assert {"2", "3", "5", "network.deadline_s (logarithmic)"} <= {*texts}
            assert tab.errors == []

    def test_saved_files_have_all_cells(self, browser, url, folder):
        with Tab(browser, url) as tab:
            with tab.page.expect_download() as saved:
                tab.page.get_by_label("Save as CSV: all cells").click()
            lines = saved.value.path().read_text().splitlines()
            assert len(lines) == 1 + 24
            assert lines[0].startswith(
                "network.channels,network.deadline_s,data.partition,policy,seeds,cumulative_delay_s,"
            )
            with tab.page.expect_download() as picture:
                tab.page.get_by_label("Save as SVG: Heat map over two keys").click()
            assert "heat" not in picture.value.path().read_text().split("</desc>")[1]  # styles are in the elements

    def test_the_page_fits_a_phone(self, browser, url):
        with Tab(browser, url) as tab:
            for width in tab.screens([390]):
                assert tab.scroll_width() == width
            assert (tab.errors, set(tab.requests)) == ([], {url})
