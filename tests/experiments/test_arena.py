"""`fedlane arena` and `fedlane arena tune`: the leaderboard, its folder and page, and what is refused."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlane import Scenario, Simulation, simulate
from fedlane.experiments.arena.arena_measures import MEASURE, arena_measure, curve_rounds, optimum_measure
from fedlane.experiments.arena.arena_worlds import TARGETS, TUNING_WORLDS, make_world
from fedlane.experiments.arena.entrants import entrants
from fedlane.experiments.arena.plan import ArenaPlan
from fedlane.experiments.arena.playing import play_arena
from fedlane.experiments.arena.run_pages import make_pages, page_links
from fedlane.experiments.arena.tuned import TunedValues
from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.scenario import presets
from fedlane.simulation.optimal_delays import optimal_delays
from support.counted_policy import COUNTED
from support.terminal import fedlane as command
from support.terminal import fedlane_forked

TINY = ("arena", "--world", "churn", "--world", "drifting", "--rounds", "4", "--seeds", "2", "--no-learning")
POLICIES = ("--policy", "lane", "--policy", "random", "--policy", "mamab-om", "--policy", "genie")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small arena in two worlds, with pages of its runs."""
    out = tmp_path_factory.mktemp("arena") / "small"
    command(*TINY, *POLICIES, "--out", out, "--quiet", cwd=out.parent, code=0)
    return out


class TestMeasures:
    @pytest.mark.slow
    def test_a_cell_has_the_measures_of_its_seeds(self):
        world = make_world("churn", ["learning.evaluate_every=2", "learning.target_accuracy=0.01"], 6)
        (batch,) = Cell(world.scenario, "random", (3, 5)).batches(MEASURE)
        rows = arena_measure(batch.values).to_pylist()
        run = simulate(world.scenario, "random", seeds=[3, 5])
        simulation = Simulation(world.scenario, "random", [3, 5])
        clients = run.clients.to_pylist()
        for k, row in enumerate(rows):
            own = [client for client in clients if client["replica"] == k]
            clock_s = [r["clock_s"] for r in run.rounds.to_pylist() if r["replica"] == k]
            quotas = 0.875 * simulation.setup.problem.quotas[k]
            present = [client["present_share"] for client in own]
            shares = [c["participation"] / p if p else q for c, p, q in zip(own, present, quotas, strict=True)]
            assert row["simulated_time_s"] == pytest.approx(clock_s[-1])
            assert row["shortfall"] == pytest.approx(np.maximum(quotas - shares, 0.0).mean())
            assert row["min_participation"] == pytest.approx(min(c["participation"] for c in own))
            assert row["energy_j"] == pytest.approx(sum(client["energy_j"] for client in own))
            assert row["epsilon"] == pytest.approx(max(client["epsilon"] for client in own))
            assert row["clock_s_19"] == pytest.approx(clock_s[-1])
            assert row["time_to_target_s"] == pytest.approx(run.time_to_accuracy(0.01)[k])
            assert row["final_accuracy"] == row["accuracy_19"] == run.rounds.to_pylist()[6 * k + 5]["accuracy"]
        assert [row["seed"] for row in rows] == [3, 5]

    def test_curves_end_with_the_run(self):
        assert curve_rounds(200)[0] == 10
        assert curve_rounds(200)[-1] == 200
        assert curve_rounds(5)[-1] == 5
        assert min(curve_rounds(5)) == 1

    def test_the_optimum_is_that_of_the_theory_and_null_elsewhere(self):
        paper = Scenario.load("paper-fmnist").with_values({"rounds": 7})
        row = optimum_measure({"scenario": paper.model_dump(mode="json"), "seeds": [0]}).to_pylist()[0]
        mean_s = optimal_delays(Simulation(paper, "random", [0]).setup)[0]
        assert row["simulated_time_s"] == pytest.approx(7 * mean_s)
        drifting = Scenario.load("drifting").model_dump(mode="json")
        assert optimum_measure({"scenario": drifting, "seeds": [0]}).to_pylist()[0]["simulated_time_s"] is None


class TestWorlds:
    def test_every_world_is_a_preset_with_a_target(self):
        assert set(TARGETS) <= set(presets())
        assert set(TUNING_WORLDS) < set(TARGETS)
        assert make_world("phones").target_accuracy == TARGETS["phones"]
        assert make_world("phones", ["learning.target_accuracy=0.3"]).target_accuracy == 0.3

    def test_a_world_without_its_data_is_skipped_with_a_line(self, tmp_path):
        done = command(
            *TINY, "--world", "commute-lte", "--policy", "random", "--out", "a", cwd=tmp_path, code=0, FEDLANE_DATA=""
        )
        assert "skipped commute-lte: trace mahimahi does not exist" in done.stderr
        assert set(pq.read_table(tmp_path / "a/leaderboard.parquet")["world"].to_pylist()) == {"churn", "drifting"}


class TestCommand:
    @pytest.mark.slow
    def test_the_leaderboard_has_one_row_per_world_entrant_and_seed(self, folder):
        table = pq.read_table(folder / "leaderboard.parquet")
        assert table.num_rows == 2 * 6 * 2  # lane and mamab-om also with the tuned values of the package
        assert table.column_names[:13] == [
            *("world", "policy", "tuned", "league", "seed", "simulated_time_s", "min_participation", "shortfall"),
            *("jain", "final_accuracy", "time_to_target_s", "energy_j", "epsilon"),
        ]
        assert table["final_accuracy"].null_count == table.num_rows
        assert {row["league"] for row in table.to_pylist() if row["policy"] == "genie"} == {"yardstick"}

    @pytest.mark.slow
    def test_the_page_shows_every_entrant_and_links_to_its_run(self, folder):
        page = (folder / "leaderboard.html").read_text()
        assert len(list((folder / "runs").glob("*.html"))) == 2 * 6
        for label in ("lane", "random", "mamab-om", "genie"):
            (run,) = (folder / "runs").glob(f"churn-{label}-????????.html")
            assert f'href="runs/{run.name}">{label}</a>' in page
        assert "<script" not in page

    @pytest.mark.slow
    def test_nothing_is_computed_twice_and_an_arena_may_grow(self, tmp_path, counted):
        base = (*TINY, "--policy", COUNTED, "--no-pages", "--out", "a")
        command(*base, cwd=tmp_path, code=0)
        first = (tmp_path / "a/leaderboard.parquet").read_bytes()
        command(*base, cwd=tmp_path, code=0)
        assert (tmp_path / "a/leaderboard.parquet").read_bytes() == first
        assert len(counted()) == 2
        command(*base, "--world", "phones", "--policy", "random", cwd=tmp_path, code=0)
        assert len(counted()) == 3

    @pytest.mark.slow
    def test_a_policy_joins_by_its_import_path_and_json_has_the_standings(self, tmp_path):
        done = command(*TINY, "--policy", COUNTED, "--policy", "random", "--json", "--out", "a", cwd=tmp_path, code=0)
        entries = json.loads(done.stdout)["standings"]
        assert {entry["policy"] for entry in entries} == {COUNTED, "random"}
        assert {entry["rank"] for entry in entries} == {1}  # the same rule, so the same times

    def test_a_cell_that_fails_is_named_and_the_others_are_kept(self, tmp_path):
        done = command(*TINY, "--policy", "random", "--policy", "lane:V=1e400", "--out", "a", cwd=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.slow
    def test_a_killed_arena_continues(self, tmp_path, counted):
        """The second cell kills the process; the first is not computed again."""
        policies = ("--policy", f"{COUNTED}:tag=1", "--policy", f"{COUNTED}:tag=2,kill=true")
        words = [*TINY, *policies, "--no-pages", "--out", "a"]
        with fedlane_forked(*words, cwd=tmp_path, KILL_ONCE=str(tmp_path / "killed")) as arena:
            assert arena.wait().returncode == -signal.SIGKILL, arena.result.stderr
        assert counted() == ["1", "2"]
        command(*words, cwd=tmp_path, code=0)
        assert counted() == ["1", "2", "2", "1", "2"]
        assert pq.read_table(tmp_path / "a/leaderboard.parquet").num_rows == 8

    @pytest.mark.slow
    def test_dry_run_writes_nothing(self, tmp_path):
        done = command(*TINY, "--policy", "random", "--dry-run", "--out", "a", cwd=tmp_path, code=0)
        assert "churn random (schedule only)" in done.stdout
        assert "2 cells x 2 seeds, 2 to compute: about" in done.stdout
        assert not (tmp_path / "a").exists()
        cells = json.loads(command(*TINY, "--policy", "random", "--dry-run", "--json", cwd=tmp_path, code=0).stdout)
        assert [cell["stored"] for cell in cells["cells"]] == [False, False]

    @pytest.mark.slow
    def test_quick_is_small_and_trains_only_where_losses_are_required(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fedlane.experiments.arena.estimate.estimated_arena_seconds", lambda *plan: 1.0)
        words = ("arena", "--quick", "--policy", "random", "--policy", "tifl", "--dry-run", "--json")
        planned = json.loads(command(*words, cwd=tmp_path, code=0).stdout)
        assert planned["seeds"] == [0, 1, 2]
        assert "cell-1000" not in {cell["world"] for cell in planned["cells"]}
        assert {cell["learning"] for cell in planned["cells"] if cell["policy"] == "random"} == {False}
        assert {cell["learning"] for cell in planned["cells"] if cell["policy"] == "tifl"} == {True}
        command("arena", "--quick", "--world", "churn", "--policy", "random", "--out", "a", cwd=tmp_path, code=0)
        rows = pq.read_table(tmp_path / "a/leaderboard.parquet").to_pylist()
        assert [(row["seed"], row["rounds"]) for row in rows] == [(0, 100), (1, 100), (2, 100)]
        assert not (tmp_path / "a/runs").exists()

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (("--world", "chrun"), "unknown world 'chrun' (did you mean 'churn'?)"),
            (("--world", "churn", "--world", "churn"), "--world names the same world twice"),
            (("--policy", "lame"), "unknown policy 'lame'"),
            (("--policy", "lane", "--policy", "lane"), "--policy names the same policy twice"),
            (("--policy", "no_such_module:Mine"), "no_such_module"),
            (("--seeds", "0"), "--seeds must be at least 1"),
            (("--seeds", "5:5"), "names no seed"),
            (("--rounds", "0"), "rounds"),
            (("--workers", "0"), "workers must be at least 1"),
            (("--set", "network.client=3"), "network.client"),
            (("--tuned", "missing.json"), "missing.json do not exist"),
            (("--policy", "oort", "--no-learning"), "oort requires losses"),
            (("--ray", "--ray-address", "a:1"), "cannot be combined"),
        ],
    )
    def test_bad_input_is_one_line(self, tmp_path, words, line):
        done = command("arena", *words, cwd=tmp_path, code=2)
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not any(tmp_path.iterdir())

    def test_another_folder_is_refused(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a/mine.txt").write_text("mine")
        done = command(*TINY, "--policy", "random", "--out", "a", cwd=tmp_path, code=2)
        assert "does not hold an arena" in done.stderr

    def test_options_before_tune_are_refused(self, tmp_path):
        done = command("arena", "--quick", "tune", cwd=tmp_path, code=2)
        assert "options of fedlane arena tune come after its name" in done.stderr


class TestTuneCommand:
    @pytest.mark.slow
    def test_tuned_values_enter_the_arena(self, tmp_path):
        words = ("--world", "churn", "--policy", "lane", "--trials", "3", "--seeds", "2", "--rounds", "4")
        done = command("arena", "tune", *words, "--out", "t", "--json", cwd=tmp_path, code=0)
        content = json.loads((tmp_path / "t/tuned.json").read_text())
        assert json.loads(done.stdout)["tuned"] == content
        content["policies"]["lane"]["chosen"] = 1
        (tmp_path / "t/tuned.json").write_text(json.dumps(content))
        command(*TINY, "--policy", "lane", "--tuned", "t", "--out", "a", cwd=tmp_path, code=0)
        rows = pq.read_table(tmp_path / "a/leaderboard.parquet").to_pylist()
        assert {(row["policy"], row["tuned"]) for row in rows} == {("lane", False), ("lane", True)}
        assert "Tuned values" in (tmp_path / "a/leaderboard.html").read_text()

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (("--policy", "random"), "random states no ranges"),
            (("--policy", "lane:V=3"), "without parameters"),
            (("--trials", "0"), "--trials must be at least 1"),
            (("--world", "nowhere"), "unknown world"),
        ],
    )
    def test_bad_input_is_one_line(self, tmp_path, words, line):
        done = command("arena", "tune", *words, cwd=tmp_path, code=2)
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_losses_are_learned_even_where_the_others_are_only_scheduled(tmp_path):
    worlds = (make_world("churn", ["learning.evaluate_every=1"], 3),)
    plan = ArenaPlan(worlds, tuple(entrants(["random", "oort"], TunedValues())), (0,), learning=False)
    result = play_arena(plan, InProcessRunner(), tmp_path / "a")
    learned = {row["policy"]: row["final_accuracy"] is not None for row in result.table.to_pylist()}
    assert learned == {"random": False, "oort": True}
    make_pages(plan, InProcessRunner(), tmp_path / "a")
    assert len(page_links(plan, tmp_path / "a")) == 2


@pytest.mark.slow
def test_the_page_opens_in_a_browser_without_errors(folder, browser):
    errors = []
    tab = browser.new_page()
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((Path(folder) / "leaderboard.html").as_uri())
    assert tab.locator("section#churn tbody tr").count() >= 4
    assert tab.locator("section#churn svg polyline").count() == 6
    tab.locator("section#churn a", has_text="genie").first.click()
    tab.wait_for_selector("html[data-ready]")
    assert "churn" in tab.title()
    tab.close()
    assert not errors


def test_the_time_left_follows_from_the_weights_of_the_cells(capsys, monkeypatch):
    """Half of the weight took 110 s, so the rest takes as long, although only one of three cells is finished."""
    from fedlane.cli import cell_progress as module
    from fedlane.experiments.engine.work_batches import FinishedBatch

    clock = iter([0.0, 110.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(module, "LINE_S", 1.0)
    lines = []
    monkeypatch.setattr(module.messages, "print", lambda line, **options: lines.append(line))
    with module.cell_progress([{"a"}, {"b"}, {"c"}], set(), quiet=False, weights=[2.0, 1.0, 1.0]) as on_finished:
        on_finished(FinishedBatch("a", b""))
    assert lines[-1] == "1 of 3 cells, about 110 seconds left"
