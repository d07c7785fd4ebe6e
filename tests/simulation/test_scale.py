"""Long runs and large fleets: rounds in files, every k-th round of the clients, and results that stay the same."""

import json
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.cli import session as terminal
from fedlane.cli.session import Session
from fedlane.report.page_data import page_data
from fedlane.report.seed_measures import seed_measures
from fedlane.scheduling import make_policy
from fedlane.simulation import table_parts, tables, trace_shape
from fedlane.simulation.footprint import run_footprint
from fedlane.simulation.merging import merge_runs
from fedlane.simulation.replaying import prepare_replay
from fedlane.simulation.results import RunFolder
from fedlane.simulation.segments import NAME as SEGMENTS
from fedlane.validate import InputError
from support.small_runs import UNSAMPLED, played

pytestmark = pytest.mark.slow

ROUNDS = 50


def scenario(**changes: object) -> Scenario:
    """A scenario of 10 clients on 4 channels."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return UNSAMPLED.with_values({"rounds": ROUNDS, **values})


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds go to files after 64 channels, and the rows of clients are made 30 at a time."""
    monkeypatch.setattr(trace_shape, "HELD_CHANNEL_ROWS", 20)
    monkeypatch.setattr(trace_shape, "SEGMENT_ROWS", 64)
    monkeypatch.setattr(tables, "PART_ROWS", 30)
    monkeypatch.setattr(table_parts, "LAZY_ROWS", 10)


def whole(run_scenario: Scenario, policy: str = "lane", seeds: tuple[int, ...] = (0, 1)) -> Run:
    """The run with every round in memory."""
    return played(run_scenario, policy, seeds).result()


def check_same(run: Run, expected: Run, every: int = 1) -> None:
    """Compare a run with one that was in memory, of which ``run`` has every k-th round of the clients."""
    for name, table in expected.tables.items():
        stored = run.tables[name]
        if name == "rounds" and every > 1:
            stored = stored.drop_columns("max_queue")
        elif name == "client_rounds":
            table = table.filter(table["round"].to_numpy() % every == 0)
        assert stored.equals(table), name
    ignored = {"elapsed_s", "client_rounds_every"}
    assert {k: v for k, v in run.summary.items() if k not in ignored} == {
        k: v for k, v in expected.summary.items() if k not in ignored
    }


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("mechanism", ["none", "paper", "rigorous"])
def test_a_run_in_files_has_the_results_of_a_run_in_memory(mechanism):
    terms = scenario(privacy__mechanism=mechanism)
    run = simulate(terms, "lane", seeds=[0, 1], learning=False)
    expected = whole(terms)
    check_same(run, expected)
    assert run.ledger == expected.ledger


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("mechanism", ["none", "rigorous"])
def test_of_many_client_rounds_every_kth_is_kept(monkeypatch, mechanism):
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 140)
    terms = scenario(privacy__mechanism=mechanism)
    run, expected = simulate(terms, "lane", seeds=[0, 1], learning=False), whole(terms)
    assert run.summary["client_rounds_every"] == 8  # 2 seeds x 50 rounds x 10 clients = 1000 rows
    assert sorted(set(run.client_rounds["round"].to_pylist())) == list(range(0, ROUNDS, 8))
    check_same(run, expected, every=8)
    now, then = seed_measures(run.tables), seed_measures(expected.tables)
    assert all(np.array_equal(now[name], then[name], equal_nan=True) for name in then)


def test_small_runs_stay_as_they_are():
    run = simulate(scenario(), "lane", learning=False)
    assert "client_rounds_every" not in run.summary
    assert "max_queue" not in run.rounds.column_names


@pytest.mark.usefixtures("files")
def test_a_schedule_is_complete_although_rounds_are_in_files():
    bounded, expected = (Simulation(scenario(), "lane", [0, 1], bounded=limit) for limit in (True, False))
    bounded.play()
    expected.play()
    assert bounded.trace.client.shape[1] < ROUNDS
    now, then = bounded.schedule(), expected.schedule()
    assert np.array_equal(now.client, then.client)
    assert np.array_equal(now.punctual, then.punctual)


@pytest.mark.usefixtures("files")
def test_a_result_does_not_change_while_the_run_continues():
    simulation = Simulation(scenario(), "lane", [0], bounded=True)
    simulation.play(until=21)
    early = simulation.result()
    simulation.play()
    assert early.assignments["round"].to_numpy().max() == 20
    assert early.client_rounds["round"].to_numpy().max() == 20


def killed_at(round_number: int, folder: Path, terms: Scenario) -> None:
    """Play a run in a child process that saves after every seventh round and is killed."""
    child = os.fork()
    if child == 0:
        target = RunFolder.create(folder)
        simulation = Simulation(terms, "lane", [0, 1], bounded=True)
        simulation.keep_segments_in(folder)

        def on_round() -> None:
            if simulation.round == round_number:
                os.kill(os.getpid(), signal.SIGKILL)
            if simulation.round % 7 == 0:
                target.write(simulation.result(), checkpoint=simulation.checkpoint())

        simulation.play(None, on_round)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("killed", [9, 34, 41])
@pytest.mark.parametrize("mechanism", ["none", "paper"])
def test_a_killed_run_resumes_with_the_same_results(tmp_path, monkeypatch, killed, mechanism):
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 400)
    terms, folder = scenario(privacy__mechanism=mechanism), tmp_path / "run"
    killed_at(killed, folder, terms)
    resumed = Simulation.resume(folder)
    assert resumed.round == killed - killed % 7
    resumed.play()
    check_same(resumed.result(), whole(terms), every=3)


@pytest.mark.usefixtures("files")
def test_a_missing_segment_is_reported(tmp_path):
    killed_at(30, tmp_path / "run", scenario())
    segment = sorted((tmp_path / "run" / SEGMENTS).iterdir())[0]
    segment.unlink()
    with pytest.raises(InputError, match=segment.name):
        Simulation.resume(tmp_path / "run")


def test_a_whole_checkpoint_of_a_long_run_is_continued_in_bounded_memory(tmp_path, monkeypatch):
    simulation = Simulation(scenario(), "lane", [0, 1])
    simulation.play(until=30)
    RunFolder.create(tmp_path / "run").write(simulation.result(), checkpoint=simulation.checkpoint())
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 400)
    monkeypatch.setattr(trace_shape, "SEGMENT_ROWS", 64)
    resumed = Simulation.resume(tmp_path / "run")
    assert resumed.trace.first > 0
    resumed.play()
    check_same(resumed.result(), whole(scenario()), every=3)


@pytest.mark.usefixtures("files")
def test_the_terminal_writes_a_large_run_and_removes_its_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 140)
    monkeypatch.setattr(terminal, "CHECKPOINT_S", 0.0)
    folder = tmp_path / "run"

    def make():
        return Simulation(scenario(), "lane", [0, 1], bounded=True)

    result = Session(quiet=True).play("lane", make, RunFolder.create(folder))
    assert not (folder / SEGMENTS).exists()
    assert not (folder / "checkpoint.npz").exists()
    check_same(result, whole(scenario()), every=8)
    check_same(Run.load(folder), whole(scenario()), every=8)
    assert json.loads((folder / "summary.json").read_text())["client_rounds_every"] == 8


@pytest.mark.usefixtures("files")
def test_a_page_shows_a_thinned_run(tmp_path, monkeypatch):
    from fedlane.report import run_files

    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 400)
    simulate(scenario(), "lane", seeds=[0, 1], learning=False).save(tmp_path / "run")
    for rows, every in ((10_000, 3), (100, 12)):
        monkeypatch.setattr(run_files, "CLIENT_ROUND_ROWS", rows)
        files = run_files.read_run(tmp_path / "run")
        assert files.client_rounds_every == every
        (shown,) = page_data([tmp_path / "run"])["runs"]
        assert shown["rounds"] == ROUNDS
        assert shown["detail"]["queue_every"] % every == 0


@pytest.mark.usefixtures("files")
def test_thinned_runs_merge(monkeypatch):
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 140)
    one, other = (simulate(scenario(), "lane", seeds=[seed], learning=False) for seed in (0, 1))
    merged = merge_runs({"one": one, "other": other})
    check_same(merged, whole(scenario()), every=4)
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 100)
    with pytest.raises(InputError, match="client_rounds"):
        merge_runs({"one": one, "other": simulate(scenario(), "lane", seeds=[1], learning=False)})


def peak_bytes(rounds: int) -> int:
    """Largest memory of the Python objects and arrays of a run."""
    fleet = scenario(rounds=rounds, network__clients=20, network__channels=8)
    simulation = Simulation(fleet, "random", [0], bounded=True)
    tracemalloc.start()
    simulation.play()
    result = simulation.result()
    for name in ("assignments", "client_rounds"):
        for _ in result.tables.parts(name):
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.usefixtures("files")
def test_memory_does_not_grow_with_the_rounds(monkeypatch):
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 1000)
    peak_bytes(200)  # loads what every run needs
    # The smaller of two: in between, Python may have enlarged a table of all its names.
    short, long = (min(peak_bytes(rounds) for _ in range(2)) for rounds in (300, 1100))
    per_round = (long - short) / 800
    assert per_round < 400  # a row of the table `rounds`; with the whole trace it is about 6,500


def test_the_estimate_of_memory_knows_files():
    long = scenario(rounds=1_000_000)
    policy = make_policy("random", {})
    held, in_files = (run_footprint(long, policy, 1, learning=False, bounded=limit) for limit in (False, True))
    assert in_files.total < held.total / 5


@pytest.mark.parametrize(
    ("policy", "bytes_per_pair"), [("random", 0), ("mamab-om", 64), ("lane-2026", 80), ("lane", 220)]
)
def test_the_estimate_of_memory_per_pair(policy, bytes_per_pair):
    """docs/scale.md states what a pair costs. With 100 or 300 channels, what each client costs cancels out."""
    assert per_pair(policy) == pytest.approx(bytes_per_pair, abs=3)


def test_a_policy_that_reads_the_whole_network_makes_it_keep_every_pair():
    assert per_pair("genie") > 40


def per_pair(policy: str) -> float:
    """Return the bytes that one more pair costs, from the costs of 1,000 more clients on 300 and on 100 channels."""

    def estimated(clients: int, channels: int) -> float:
        terms = scenario(rounds=10, network__clients=clients, network__channels=channels)
        footprint = run_footprint(terms, make_policy(policy, {}), 1, learning=False)
        return footprint.per_seed["clients and channels"]

    many, few = (estimated(2000, channels) - estimated(1000, channels) for channels in (300, 100))
    return (many - few) / (1000 * 200)


@pytest.mark.usefixtures("files")
def test_a_schedule_of_a_run_in_files_is_saved_before_they_are_removed(tmp_path):
    def make():
        return Simulation(scenario(), "lane", [0, 1], bounded=True)

    target = RunFolder.create(tmp_path / "run")
    Session(quiet=True).play("lane", make, target, schedule=tmp_path / "schedule.npz")
    assert not (tmp_path / "run" / SEGMENTS).exists()
    with np.load(tmp_path / "schedule.npz") as saved:
        assert saved["client"].shape[1] == ROUNDS


@pytest.mark.usefixtures("files")
def test_runs_of_few_and_of_many_seeds_merge(monkeypatch):
    """The run of two seeds has the largest queues in its table of rounds; the other run is too small for that."""
    monkeypatch.setattr(trace_shape, "LISTED_CLIENT_ROWS", 900)
    many = simulate(scenario(), "lane", seeds=[0, 1], learning=False)
    few = simulate(scenario(), "lane", seeds=[2], learning=False)
    assert "max_queue" in many.rounds.column_names
    assert "max_queue" not in few.rounds.column_names
    check_same(merge_runs({"many": many, "few": few}), whole(scenario(), seeds=(0, 1, 2)))


def test_an_older_folder_with_every_round_of_a_large_fleet_is_replayed(monkeypatch):
    """Before runs were thinned, every round of such a fleet was stored."""
    stored = whole(scenario())
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 140)
    assert prepare_replay(stored, "cpu").trace.every == 1
    thinned = simulate(scenario(), "lane", seeds=[0, 1], learning=False)
    assert prepare_replay(thinned, "cpu").trace.every == 8


def test_a_fleet_may_have_more_clients_than_the_data_set_has_samples():
    fleet = scenario(rounds=3, data__dataset="fashion-mnist-mini", network__clients=9000)
    simulation = Simulation(fleet, "random", [0], bounded=True)
    counts = simulation.setup.label_counts[0]
    assert counts.sum(axis=1).min() >= 1
    assert np.isfinite(simulation.quota).all()
    simulation.play()
    with pytest.raises(InputError, match="training samples"):
        simulation.schedule()
    with pytest.raises(InputError, match="training samples"):
        Simulation(fleet, "random", [0], learning=True)


def test_lane_resumes_after_its_histories_have_grown(tmp_path):
    terms = scenario(network__clients=20, network__channels=8)
    simulation = Simulation(terms, "lane", [0, 1])
    simulation.play(until=40)
    RunFolder.create(tmp_path / "run").write(simulation.result(), checkpoint=simulation.checkpoint())
    resumed = Simulation.resume(tmp_path / "run")
    resumed.play()
    simulation.play()
    assert resumed.result().assignments.equals(simulation.result().assignments)


@pytest.mark.usefixtures("files")
def test_energies_stay_on_the_uploads_that_spent_them_when_rounds_go_to_files():
    """Round-robin leaves channels idle, on which no energy of an earlier round may remain; results do not change."""
    bounded, expected = (Simulation(scenario(), "round-robin", [0, 1], bounded=limit) for limit in (True, False))
    bounded.play(until=15)
    early = bounded.trace.played()
    held = early.energy_j.copy()
    bounded.play(until=47)
    expected.play(until=47)
    np.testing.assert_array_equal(early.energy_j, held)
    now, first = bounded.trace.played(), bounded.trace.first
    assert 0 < first < 47
    assert np.any(now.client < 0)
    np.testing.assert_array_equal(np.isnan(now.energy_j), now.client < 0)
    np.testing.assert_array_equal(now.energy_j, expected.trace.energy_j[:, first:47])
