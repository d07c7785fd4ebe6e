"""Real SuperNodes that fail, are killed, or lose their server: the federation continues and forgets no upload."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from fedlane.flower.server.state_files import StateStore
from fedlane.simulation.results import Run
from support.superlink import Federation
from support.waiting import wait_for

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]
DEADLINE_S = 20.0
FAULTS = {"client-1": ["nan", "shape", "greedy"], "client-2": ["norm", "imposter"]}
REASONS = {
    "nan": "'w' is not finite",
    "shape": "'w' must be (1000,) of float32, got (999,)",
    "greedy": "num-examples must be above 0 and at most 1000",
    "norm": "'w' has weights above 1000",
    "imposter": "the report is for client 'client-0', the order was for client 'client-2'",
}
"""What the server logs about each fault."""
KILLED_ROUND, ROUNDS = 3, 5


def uploads(folder, client):
    """Return (round, lane) of every upload, according to the client's own file."""
    path = folder / f"{client}.uploads"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def members(folder):
    """Return what the server has stored about each client, by name."""
    return {entry["introduction"]["name"]: entry for entry in StateStore(folder / "state").load().values["roster"]}


def assert_nothing_is_undercounted(folder):
    """No client has more uploads than the server counted, and epsilon is at least the client's own figure."""
    rows = Run.load(folder / "state").clients.to_pylist()
    for name, member in members(folder).items():
        count, row = len(uploads(folder, name)), rows[member["index"]]
        assert count <= member["sent"] == row["uploads"]
        assert row["epsilon"] is None or row["epsilon"] >= 0.25 * count  # None: its last order is unanswered


def test_killed_and_resumed(tmp_path, federation):
    """The ServerApp is killed, then SuperLink: each time the next run continues, and no upload is forgotten."""
    clients = [f"client-{number}" for number in federation.nodes]
    config = {"clients": len(clients), "lanes": 1, "rounds": 5, "deadline": DEADLINE_S, "folder": str(tmp_path)}
    held = {round: tmp_path / f"hold-{round}" for round in (1, 2)}
    for hold in held.values():
        hold.touch()

    def begin_run_until(round):
        """Submit a run, and wait until a client trains in a round; it goes on once that round is no longer held."""
        run = federation.run("faults", config)
        training = lambda: round in [at for client in clients for at, _ in uploads(tmp_path, client)]  # noqa: E731
        wait_for(training, 300, run.log)

    begin_run_until(1)
    os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGKILL)
    before = Run.load(tmp_path / "state")
    held[1].unlink()
    begin_run_until(2)
    federation.kill_superlink()  # a ServerApp that outlives it is stopped when it is back
    held[2].unlink()
    federation.start_superlink()
    run = federation.run("faults", config)
    run.wait(300)
    result = Run.load(tmp_path / "state")
    assert json.loads((tmp_path / "state" / "status.json").read_text())["state"] == "finished", run.log()
    assert result.rounds["round"].to_pylist() == [0, 1, 2, 3, 4]
    assert result.rounds["delay_s"].to_pylist()[0] == before.rounds["delay_s"].to_pylist()[0]
    punctual = result.rounds["punctual"].to_pylist()
    assert punctual[:2] == [1, 0]  # round 1 was cut off, and so is round 2 unless the ServerApp outlived SuperLink
    np.testing.assert_allclose(result.model["w"], np.full(1000, sum(punctual)), rtol=1e-6)
    journal = (tmp_path / "state" / "orders.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in journal] == [0, 1, 2, 3, 4]  # nobody is ordered twice for a round
    assert sum(result.clients["uploads"].to_pylist()) == 5
    assert_nothing_is_undercounted(tmp_path)
    assert not any(member["barred"] for member in members(tmp_path).values())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, shared_federation):
    """Play a federation of three clients, of which only the first is always honest.

    Clients 1 and 2 send what `FAULTS` says. In round 3, client 1's node is killed while it trains, and client 2's when
    SuperLink has the header of its reply, and announces it, but not the rest.

    Returns:
        The folder, the run, and the lines of the server's log.
    """
    folder, federation = tmp_path_factory.mktemp("faults"), shared_federation.ready()
    (folder / "faults.json").write_text(json.dumps({**FAULTS, "client-1": [*FAULTS["client-1"], "endless"]}))

    def pushed():
        if len(uploads(folder, "client-2")) == KILLED_ROUND + 1 and 2 in federation.nodes:
            federation.kill_node(2)

    federation.relays[2].pushed = pushed
    config = {"clients": 3, "lanes": 3, "rounds": ROUNDS, "deadline": DEADLINE_S, "folder": str(folder)}
    run = federation.run("faults", config)
    wait_for(lambda: len(uploads(folder, "client-1")) == KILLED_ROUND + 1, 400, run.log)
    federation.kill_node(1)
    run.wait(400)
    assert 2 not in federation.nodes
    log = (folder / "fedlane.log").read_text().splitlines()
    return SimpleNamespace(folder=folder, result=Run.load(folder / "state"), log=log)


@pytest.mark.parametrize(
    ("round", "client", "fault"),
    [(round, client, fault) for client, faults in FAULTS.items() for round, fault in enumerate(faults)],
)
def test_the_log_names_client_and_reason_of_a_dropped_update(faulty, round, client, fault):
    (line,) = [line for line in faulty.log if f"round {round}, " in line and f"client {client}, lane" in line]
    assert REASONS[fault] in line


def test_a_node_that_is_killed_does_not_answer(faulty):
    for client in ("client-1", "client-2"):
        node = members(faulty.folder)[client]["node_id"]
        lines = [line for line in faulty.log if f"round {KILLED_ROUND}, node {node}, client {client}" in line]
        assert any("no answer" in line for line in lines), faulty.log


def test_nothing_but_honest_updates_enters_the_model(faulty):
    """They add 1 to every weight, and one client is punctual in every round."""
    assert all(count > 0 for count in faulty.result.rounds["punctual"].to_pylist()), faulty.log
    np.testing.assert_allclose(faulty.result.model["w"], np.full(1000, ROUNDS), rtol=1e-6)
    assert faulty.result.model["n"].dtype == np.int64
    assert faulty.result.model["n"][0] == ROUNDS


def test_a_client_that_fails_is_late_and_a_round_ends_with_its_deadline(faulty):
    late = {(row["round"], row["client"]) for row in faulty.result.assignments.to_pylist() if not row["punctual"]}
    invalid = {(round, int(client[-1])) for client, faults in FAULTS.items() for round in range(len(faults))}
    assert invalid | {(KILLED_ROUND, 1), (KILLED_ROUND, 2)} <= late
    assert faulty.result.rounds["delay_s"].to_pylist()[KILLED_ROUND] == DEADLINE_S
    assert max(faulty.result.rounds["delay_s"].to_pylist()) == DEADLINE_S


def test_no_upload_of_a_client_that_fails_is_forgotten(faulty):
    assert [len(uploads(faulty.folder, client)) for client in FAULTS] == [KILLED_ROUND + 1] * 2
    assert_nothing_is_undercounted(faulty.folder)


def test_the_settings_of_a_federation_are_in_its_run_folder(faulty):
    assert faulty.result.summary["flower"]["floor_s"] == 4.5
    assert faulty.result.scenario.network.deadline_s == DEADLINE_S


def test_apps_are_forked_by_the_prefork_server(faulty):
    assert b"fedlane.flower.node.prefork" in (faulty.folder / "client-0.parent").read_bytes()


@pytest.mark.long
def test_a_hundred_clients_in_the_simulation_engine(tmp_path):
    """The same strategy on Flower's in-memory grid (Ray)."""
    config = {"clients": 100, "lanes": 4, "rounds": 8, "deadline": 60.0, "folder": str(tmp_path)}
    engine = {"num-supernodes": 100, "client-resources-num-cpus": 1, "init-args-num-cpus": 4}
    with Federation(tmp_path, simulation=True) as federation:
        run = federation.run("faults", config, engine)
        run.wait(400)
    result = Run.load(tmp_path / "state")
    assert len(result.clients) == 100
    rows = result.assignments.to_pylist()
    assert len(rows) == 8 * 4
    assert np.mean([row["punctual"] for row in rows]) > 0.9, (tmp_path / "fedlane.log").read_text()
    played = sum(count > 0 for count in result.rounds["punctual"].to_pylist())
    np.testing.assert_allclose(result.model["w"], np.full(1000, played), rtol=1e-6)
