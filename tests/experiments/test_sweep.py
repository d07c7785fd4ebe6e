"""`fedlane sweep` and `fedlane.sweep`: the grid, the table, the folder, and what is refused."""

import json
import subprocess
import sys
from functools import partial
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedlane
from fedlane import Scenario, simulate
from fedlane.experiments import sweep_estimate
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.experiments.engine.work_batches import parquet
from fedlane.experiments.sweep import play_sweep
from fedlane.experiments.sweep_folder import claimed
from fedlane.experiments.sweep_grid import check_grid, grid_column, parse_grids
from fedlane.experiments.sweep_plan import SweepPlan
from fedlane.report.seed_measures import seed_measures
from fedlane.scheduling import make_policy
from fedlane.simulation.footprint import check_memory
from fedlane.validate import InputError
from support.counted_policy import COUNTED
from support.terminal import fedlane as command

BASE = ("sweep", "quickstart", "--rounds", "5", "--no-learning")


class TestGrid:
    def test_values_are_split_at_top_level_commas_and_are_toml(self):
        settings = [
            "network.channels=2,4",
            "network.interference_db=[1.0, 2.0],[3.0,3.0]",
            'data.partition=iid,"shards"',
            "privacy.epsilon=0.5, nonuniform",
            "a.b='x,y',z",
        ]
        assert parse_grids(settings) == {
            "network.channels": [2, 4],
            "network.interference_db": [[1.0, 2.0], [3.0, 3.0]],
            "data.partition": ["iid", "shards"],
            "privacy.epsilon": [0.5, "nonuniform"],
            "a.b": ["x,y", "z"],
        }

    @pytest.mark.parametrize(
        ("grid", "line"),
        [
            ({}, "the grid is empty"),
            ({"rounds": []}, "--grid rounds has no values"),
            ({"rounds": [3, 4, 3]}, "--grid rounds has the value 3 twice"),
            ({"seeds": [1]}, "--grid cannot vary seeds: use --seeds"),
            ({"policy": ["lane"]}, "--grid cannot vary policy: use --policy"),
        ],
    )
    def test_a_useless_grid_is_refused(self, grid, line):
        with pytest.raises(InputError, match=line):
            check_grid(grid)

    def test_columns_have_one_type(self):
        assert grid_column([1, 2]).type == "int64"
        assert grid_column([1, 2.5]).to_pylist() == [1.0, 2.5]
        assert grid_column([10**20, 5]).to_pylist() == [1e20, 5.0]
        assert grid_column([0.5, "nonuniform"]).to_pylist() == ["0.5", "nonuniform"]
        assert grid_column([[1.0, 2.0]]).to_pylist() == ["[1.0, 2.0]"]
        assert grid_column([True, False]).type == "bool"


class TestTable:
    @pytest.mark.slow
    def test_one_row_per_cell_and_seed_equal_to_separate_runs(self):
        grid = {"network.channels": [2, 3], "policies.lane.V": [1.0, 20.0]}
        table = fedlane.sweep("quickstart", ["lane", "random"], grid, seeds=[4, 2], rounds=8, learning=False)
        assert table.column_names[:4] == ["network.channels", "policies.lane.V", "policy", "seed"]
        assert table.num_rows == 2 * 2 * 2 * 2
        for channels in (2, 3):
            for v in (1.0, 20.0):
                scenario = Scenario.load("quickstart").with_values({"network.channels": channels, "rounds": 8})
                expected = seed_measures(simulate(scenario, f"lane:V={v}", seeds=[4, 2], learning=False).tables)
                rows = [
                    row
                    for row in table.to_pylist()
                    if (row["network.channels"], row["policies.lane.V"], row["policy"]) == (channels, v, "lane")
                ]
                assert [row["seed"] for row in rows] == [4, 2]
                for name in ("cumulative_delay_s", "late_share", "min_participation", "max_queue"):
                    assert [row[name] for row in rows] == pytest.approx(expected[name].tolist(), abs=1e-12)

    def test_rivals_do_not_need_to_know_the_parameters_of_an_imported_policy(self, counted):
        grid = {"policies.counted.tag": [1, 2]}
        table = fedlane.sweep("quickstart", [COUNTED, "random"], grid, rounds=5, learning=False)
        assert table["policy"].to_pylist() == [COUNTED, "random"] * 2
        assert sorted(counted()) == ["1", "2"]
        delays = table["cumulative_delay_s"].to_pylist()
        assert delays[1] == delays[3]
        with pytest.raises(InputError, match="unknown policy 'conted'"):
            fedlane.sweep("quickstart", [COUNTED, "random"], {"policies.conted.tag": [1]}, rounds=5, learning=False)

    def test_equal_cells_are_computed_once(self, counted):
        grid = {"policies.lane.V": [1.0, 2.0, 3.0]}
        table = fedlane.sweep("quickstart", ["lane", COUNTED], grid, rounds=5, learning=False)
        assert table.num_rows == 6
        assert len(counted()) == 1  # V has no effect on the other policy

    def test_learning_is_measured(self):
        table = fedlane.sweep("quickstart", "random", {"learning.learning_rate": [0.05, 0.5]}, rounds=3)
        assert table["final_accuracy"].null_count == 0

    @pytest.mark.slow
    def test_a_cell_that_cannot_run_is_left_out_with_a_warning(self):
        grid = {"network.clients": [10, 12], "compute.cycles_per_sample": [[1e5] * 10, 1e5]}
        with pytest.warns(RuntimeWarning, match=r"1 of 4 cells failed; the first: compute\.cycles_per_sample must"):
            table = fedlane.sweep("quickstart", "random", grid, rounds=3, learning=False)
        assert table.num_rows == 3

    def test_numbers_of_numpy_are_accepted(self):
        import numpy as np

        table = fedlane.sweep("quickstart", "random", {"network.channels": np.arange(2, 4)}, rounds=3, learning=False)
        assert table["network.channels"].to_pylist() == [2, 3]


class TestCommand:
    def test_a_sweep_writes_its_table_and_continues_where_it_stopped(self, tmp_path, counted):
        options = ("--grid", "network.channels=2,3,4", "--policy", COUNTED, "--seeds", "2", "--out", "s", "--json")
        first = json.loads(command(*BASE, *options, cwd=tmp_path, code=0).stdout)
        before = (tmp_path / "s" / "sweep.parquet").read_bytes()
        assert (first["cells"], first["rows"], first["batches"]["computed"]) == (3, 6, 3)
        assert pq.read_table(tmp_path / "s" / "sweep.parquet")["network.channels"].to_pylist() == [2, 2, 3, 3, 4, 4]
        next((tmp_path / "s" / "cells").glob("*.parquet")).unlink()
        (tmp_path / "s" / "sweep.parquet").unlink()
        second = json.loads(command(*BASE, *options, cwd=tmp_path, code=0).stdout)
        assert second["batches"] == {"computed": 1, "reused": 2, "retried": 0}
        assert len(counted()) == 4
        assert (tmp_path / "s" / "sweep.parquet").read_bytes() == before

    @pytest.mark.slow
    def test_a_sweep_grows_by_values_policies_and_seeds(self, tmp_path, counted):
        options = ("--policy", COUNTED, "--out", "s", "--quiet")
        command(*BASE, "--grid", "network.channels=2,3", *options, cwd=tmp_path, code=0)
        assert len(counted()) == 2
        more = ("--grid", "network.channels=2,3,4", "--policy", "random", *options)
        command(*BASE, *more, cwd=tmp_path, code=0)
        assert len(counted()) == 3
        assert pq.read_table(tmp_path / "s" / "sweep.parquet").num_rows == 6
        command(*BASE, *more, "--seeds", "2", cwd=tmp_path, code=0)
        assert pq.read_table(tmp_path / "s" / "sweep.parquet").num_rows == 12

    @pytest.mark.slow
    def test_a_cell_s_file_that_holds_something_else_is_computed_again(self, tmp_path, counted):
        options = (
            *BASE,
            "--grid",
            "network.channels=2,3",
            "--policy",
            COUNTED,
            "--seeds",
            "2",
            "--out",
            "s",
            "--quiet",
        )
        command(*options, cwd=tmp_path, code=0)
        table = pq.read_table(tmp_path / "s" / "sweep.parquet")
        first, second = sorted((tmp_path / "s" / "cells").iterdir())
        good = first.read_bytes()
        stored = pq.read_table(first)
        text = stored.set_column(1, "cumulative_delay_s", [["a", "b"]]).replace_schema_metadata(stored.schema.metadata)
        for content in (second.read_bytes(), good[:-40], parquet(pa.concat_tables([stored] * 3)), parquet(text)):
            before = len(counted())
            first.write_bytes(content)
            command(*options, cwd=tmp_path, code=0)
            assert len(counted()) == before + 1
            assert pq.read_table(tmp_path / "s" / "sweep.parquet").equals(table)

    def test_a_start_that_was_killed_early_can_be_repeated(self, tmp_path):
        command(*BASE, "--grid", "network.channels=2,3", "--out", "s", "--quiet", cwd=tmp_path, code=0)
        (tmp_path / "s" / "scenario.toml").unlink()
        (tmp_path / "s" / "sweep.parquet").unlink()
        command(*BASE, "--grid", "network.channels=2,3", "--out", "s", "--quiet", cwd=tmp_path, code=0)
        assert (tmp_path / "s" / "scenario.toml").is_file()
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / ".lock").touch()
        command(*BASE, "--grid", "network.channels=2,3", "--out", "killed", "--quiet", cwd=tmp_path, code=0)

    def test_a_folder_in_use_is_refused(self, tmp_path):
        plan = SweepPlan(Scenario.load("quickstart"), ("lane",), {"network.channels": [2, 3]}, (0,), False)
        with claimed(plan, tmp_path / "s"), pytest.raises(InputError, match="is in use"), claimed(plan, tmp_path / "s"):
            pass

    def test_an_empty_address_is_refused(self, tmp_path):
        options = ("--grid", "network.channels=2,3", "--ray-address", "", "--out", "s")
        result = command(*BASE, *options, cwd=tmp_path, code=2)
        assert "--ray-address is empty" in result.stderr

    def test_the_extra_is_named_where_ray_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        result = command(*BASE, "--grid", "network.channels=2,3", "--ray", cwd=tmp_path, code=2)
        assert "pip install fedlane[ray]" in result.stderr

    @pytest.mark.slow
    def test_a_missing_main_guard_is_one_line(self, tmp_path):
        call = "fedlane.sweep('quickstart', grid={'network.channels': [2, 3]}, rounds=3, learning=False, workers=2)"
        (tmp_path / "unguarded.py").write_text(f"import fedlane\n\n{call}\n", encoding="utf-8")
        run = subprocess.run([sys.executable, "unguarded.py"], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 1
        assert 'put the call under if __name__ == "__main__": in a file' in run.stderr.splitlines()[-1]

    def test_a_sweep_of_which_every_cell_fails_raises(self):
        with mock.patch("fedlane.experiments.engine.measuring.Simulation", side_effect=RuntimeError("broken")):
            grid = {"network.channels": [2, 3]}
            with pytest.raises(InputError, match="all 2 cells failed; the first: RuntimeError: broken"):
                fedlane.sweep("quickstart", grid=grid, rounds=3, learning=False)

    def test_more_workers_than_batches_or_cores_do_not_shorten_the_estimate(self, monkeypatch):
        monkeypatch.setattr(sweep_estimate, "estimated_seconds", lambda *args, **options: 10.0)
        monkeypatch.setattr(sweep_estimate.os, "cpu_count", lambda: 4)
        plan = SweepPlan(Scenario.load("quickstart"), ("lane",), {"network.channels": [2, 3, 4]}, (0,), False)
        times = [sweep_estimate.estimated_sweep_seconds(plan, plan.cells[:count], 64) for count in (1, 2, 3)]
        assert times == [10.0, 10.0, 10.0]

    def test_a_fleet_too_large_for_a_whole_trace_is_swept(self):
        """A sweep keeps no trace: 100,000 clients over 3,000 rounds would take 77 GB."""
        grid = {"network.clients": [100_000]}
        scenario = Scenario.load("quickstart").with_values({"network.channels": 100, "rounds": 3000})
        plan = SweepPlan(scenario, ("random",), grid, (0,), False)
        check = partial(check_memory, scenario.with_values({"network.clients": 100_000}), make_policy("random"), 1)
        check(learning=False, bounded=True, available=lambda: 3 * 2**30)
        with pytest.raises(InputError, match="needs about"):
            check(learning=False, available=lambda: 3 * 2**30)
        with mock.patch("fedlane.experiments.engine.measuring.Simulation", side_effect=RuntimeError) as made:
            play_sweep(plan, InProcessRunner())
        assert made.call_args.kwargs["bounded"] is True

    def test_another_sweep_s_folder_is_refused(self, tmp_path):
        command(*BASE, "--grid", "network.channels=2,3", "--out", "s", "--quiet", cwd=tmp_path, code=0)
        for options, difference in (
            (("--grid", "network.channels=2,4"), "grid (a sweep can grow"),
            (("--grid", "network.channels=2,3", "--policy", "random"), "policies (a sweep can grow"),
            (("--grid", "network.channels=2,3", "--seeds", "5:8"), "seeds (a sweep can grow"),
            (("--grid", "network.channels=2,3", "--set", "network.clients=9"), "scenario value network"),
        ):
            result = command(*BASE, *options, "--out", "s", cwd=tmp_path, code=2)
            assert f"holds another sweep, which differs in {difference}" in result.stderr
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        result = command(*BASE, "--grid", "network.channels=2,3", "--out", "other", cwd=tmp_path, code=2)
        assert "is not empty and does not hold a sweep" in result.stderr

    @pytest.mark.slow
    def test_failures_are_collected_and_the_others_continue(self, tmp_path):
        options = ("--grid", "network.clients=10,12", "--grid", f"compute.cycles_per_sample={[1e5] * 10},1e5")
        result = command(*BASE, *options, "--out", "s", cwd=tmp_path, code=1)
        assert "1 of 4 cells failed; see s/failures.json" in result.stderr
        assert pq.read_metadata(tmp_path / "s" / "sweep.parquet").num_rows == 3
        (failure,) = json.loads((tmp_path / "s" / "failures.json").read_text())
        assert failure["values"]["network.clients"] == 12
        assert failure["error"].startswith("compute.cycles_per_sample must be one value or one per client (12)")

    @pytest.mark.slow
    def test_a_dry_run_lists_cells_and_writes_nothing(self, tmp_path):
        options = ("--grid", "network.channels=2,3", "--policy", "random", "--out", "s", "--dry-run")
        result = command(*BASE, *options, cwd=tmp_path, code=0)
        assert result.stdout.splitlines()[:2] == ["random network.channels=2", "random network.channels=3"]
        assert "2 cells x 1 seed, 2 cells to compute: about" in result.stdout
        assert list(tmp_path.iterdir()) == []
        content = json.loads(command(*BASE, *options, "--json", cwd=tmp_path, code=0).stdout)
        assert content["missing"] == 2
        assert content["seconds"] > 0

    @pytest.mark.parametrize(
        ("options", "line"),
        [
            ((), "the grid is empty"),
            (("--grid", "network.channels="), "--grid network.channels has no values"),
            (("--grid", "network.channels=2,,3"), "has an empty value"),
            (("--grid", "network.channels"), "must have the form KEY=VALUE,VALUE"),
            (("--grid", "network.chanels=2,3"), "unknown key 'network.chanels' (did you mean 'channels'?)"),
            (("--grid", "netwrk.channels=2,3"), "(did you mean 'network'?)"),
            (("--grid", "network.channels=0,3"), "network.channels must be at least 1, got 0"),
            (("--grid", "network.deadline_s=1.0,nan"), "network.deadline_s must be a finite number, got nan"),
            (("--grid", "rounds=5,2020-01-01"), "rounds must be a whole number, got 2020-01-01"),
            (("--grid", "network.channels=few,3"), "network.channels must be a whole number, got 'few'"),
            (("--grid", "policies.lane.W=1,2"), "policy lane has no parameter 'W'"),
            (("--grid", "policies.lnae.V=1,2"), "unknown policy 'lnae' (did you mean 'lane'?)"),
            (("--grid", "policies.mamab-om.V=1,2"), "add --policy mamab-om"),
            (("--grid", "policies.lane.V=1,2", "--policy", "lane:V=3"), "has no effect on --policy lane:V=3"),
            (("--grid", "rounds=2,3", "--grid", "rounds=4"), "--grid names rounds twice"),
            (("--grid", "rounds=2,3", "--policy", "lane", "--policy", "lane"), "names the same policy twice"),
            (("--grid", "rounds=2,3", "--workers", "0"), "workers must be at least 1, got 0"),
            (("--grid", "rounds=2,3", "--ray", "--ray-address", "x:1"), "cannot be combined"),
        ],
    )
    def test_bad_input_is_one_line(self, tmp_path, options, line):
        result = command(*BASE, *options, "--out", "s", cwd=tmp_path, code=2)
        (printed,) = result.stderr.splitlines()
        assert line in printed
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_a_sweep_can_be_drawn(self, tmp_path):
        options = ("--grid", "network.channels=2,3", "--grid", "policies.lane.V=1,20", "--policy", "lane")
        command(*BASE, *options, "--policy", "random", "--seeds", "3", "--out", "s", "--quiet", cwd=tmp_path, code=0)
        lines = ("--x", "network.channels", "--y", "cumulative_delay_s", "--facet", "policies.lane.V")
        command("plot", "s", *lines, "--out", "lines.png", cwd=tmp_path, code=0)
        heat = ("--x", "network.channels", "--y", "policies.lane.V", "--color", "late_share", "--facet", "policy")
        command("plot", "s", *heat, "--out", "heat.png", cwd=tmp_path, code=0)
        hidden = ("--x", "network.channels", "--y", "cumulative_delay_s", "--color", "policy")
        result = command("plot", "s", *hidden, "--out", "no.png", cwd=tmp_path, code=2)
        assert "differ in policies.lane.V would share a point" in result.stderr
