"""What a run stores about its clients' movement and presence."""

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.network.mobility import WaypointWalk
from fedlane.simulation import movement
from fedlane.simulation.merging import merge_runs
from fedlane.simulation.replaying import compare_runs, tolerances
from support.small_runs import UNPROTECTED, UNSAMPLED
from support.terminal import fedlane

MOVING = UNSAMPLED.with_values({"rounds": 30, "network.mobility": "waypoint", "network.speed_m_s": (1.0, 3.0)})
CHURN = UNSAMPLED.with_values(
    {
        "rounds": 60,
        "availability.model": "markov",
        "availability.mean_on_s": 40.0,
        "availability.mean_off_s": 20.0,
        "privacy.max_uploads": 9,
    }
)


def starts_s(run):
    """(R, T): the simulated time at which each round begins."""
    rounds = run.rounds
    clock_s, delay_s = (
        rounds[name].to_numpy().reshape(len(run.summary["seeds"]), -1) for name in ("clock_s", "delay_s")
    )
    return clock_s - delay_s


def test_positions_are_those_of_the_walk_when_each_round_begins():
    run = simulate(MOVING, "random", seeds=[5, 2], learning=False)
    network = MOVING.network
    walk = WaypointWalk([5, 2], network.clients, network.area_m, (1.0, 3.0))
    expected = np.stack([walk.position_m(clock_s) for clock_s in starts_s(run).T], axis=1)
    table = run.tables["positions"]
    assert table.column_names == ["replica", "round", "client", "x_m", "y_m"]
    shape = 2, 30, network.clients
    assert [table[name].to_pylist() for name in ("replica", "round", "client")] == [
        index.ravel().tolist() for index in np.indices(shape)
    ]
    for axis, name in enumerate(("x_m", "y_m")):
        np.testing.assert_allclose(table[name].to_numpy().reshape(shape), expected[..., axis], atol=1e-3)
    assert np.ptp(expected, axis=1).max() > 30.0  # they do move


def test_clients_that_stand_have_no_table_of_positions():
    for name in ("quickstart", "churn", "campus-5g"):
        standing = Scenario.load(name).with_values({"privacy.mechanism": "none"})
        assert "positions" not in simulate(standing, "random", rounds=2, learning=False).tables


def test_positions_are_saved_loaded_merged_and_replayed(tmp_path):
    run = simulate(MOVING, "random", seeds=[0, 1], learning=False)
    run.save(tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    assert loaded.tables["positions"].equals(run.tables["positions"])
    assert list(loaded.to_pandas("positions")["seed"].unique()) == [0, 1]
    alone = {str(seed): simulate(MOVING, "random", seeds=[seed], learning=False) for seed in (1, 0)}
    assert merge_runs(alone).tables["positions"].equals(run.tables["positions"])
    checks = {check.name: check for check in compare_runs(loaded, run, tolerances(loaded, "cpu"))}
    assert checks["queues, quotas, positions"].difference == 0.0


def test_a_damaged_table_of_positions_is_one_line(tmp_path):
    simulate(MOVING, "random", rounds=2, learning=False).save(tmp_path / "run")
    (tmp_path / "run" / "positions.parquet").write_bytes(b"nonsense")
    for command in ("show", "report"):
        result = fedlane(command, "run", cwd=tmp_path, code=2)
        assert "positions.parquet" in result.stderr
        assert len(result.stderr.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("played", "planned", "clients", "every"), [(7, 7, 10, 1), (95, 1000, 100, 2), (1, 9, 10**6, 180)]
)
def test_the_stored_rounds_are_every_kth_and_the_last(played, planned, clients, every):
    rounds = movement.stored_rounds(played, planned, clients).tolist()
    assert rounds == sorted({*range(0, played, every), played - 1})
    assert len(rounds) * clients <= movement.SEED_ROWS + 2 * clients


def test_the_table_is_bounded_and_begins_with_the_first_seeds(monkeypatch):
    monkeypatch.setattr(movement, "SEED_ROWS", 100)
    monkeypatch.setattr(movement, "POSITION_ROWS", 250)
    whole = simulate(MOVING, "random", seeds=[0, 1, 2], learning=False).tables["positions"]
    assert set(whole["round"].to_pylist()) == {*range(0, 30, 3), 29}
    assert set(whole["replica"].to_pylist()) == {0, 1}
    assert len(whole) == 2 * 11 * 10


def test_presence_is_stored_apart_from_the_budget():
    simulation = Simulation(CHURN, "random", [0, 3])
    simulation.play()
    run = simulation.result()
    table, start_s = run.client_rounds, starts_s(run)
    expected = np.stack([simulation.setup.availability.present(clock_s) for clock_s in start_s.T], axis=1)
    present, available = (np.asarray(table[name]).reshape(expected.shape) for name in ("present", "available"))
    np.testing.assert_array_equal(present, expected)
    assert (available <= present).all()
    assert (present & ~available).any()  # a client whose budget is exhausted
    np.testing.assert_allclose(present.mean(axis=1), run.clients["present_share"].to_numpy().reshape(2, -1))


def test_everybody_is_present_where_nobody_leaves():
    run = simulate(UNPROTECTED, "random", rounds=3, learning=False)
    assert run.client_rounds["present"].to_pylist() == [True] * len(run.client_rounds)
