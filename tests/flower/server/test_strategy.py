"""A real SuperLink and real SuperNodes: faults are dropped, logged and counted, and the federation continues."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from fedlane.flower.server.state_files import StateStore
from fedlane.simulation.results import Run
from support.superlink import Federation, Relay
from support.waiting import wait_for

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]


def uploads(folder, client):
    """(round, lane) of every upload, according to the client's own file."""
    path = folder / f"{client}.uploads"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def log(folder):
    return (folder / "fedlane.log").read_text()


def members(folder):
    return {entry["introduction"]["name"]: entry for entry in StateStore(folder / "state").load().values["roster"]}


def test_faults(tmp_path):
    """Silence, nodes killed during a round and an upload, NaN, a wrong shape, a huge norm, another's name, ..."""
    with Federation(tmp_path) as federation:
        once = iter([True])

        def pushed():
            if uploads(tmp_path, "client-4")[5:] and next(once, False):
                federation.kill_node(4)  # SuperLink has the reply's header and announces it, but not the rest

        relay = Relay(federation.port, pushed)
        federation.start_node(0)
        federation.start_node(1, faults="nan,shape,norm,imposter,greedy", limit=5)
        federation.start_node(2, faults=",,,,,silent")
        federation.start_node(3, faults=",,,,,silent")
        federation.start_node(4, through=relay.port)
        config = {"clients": 5, "lanes": 5, "rounds": 7, "deadline": 20.0, "folder": str(tmp_path)}
        run = federation.run("faults", config)
        wait_for(lambda: uploads(tmp_path, "client-3")[5:], 400, lambda: log(tmp_path))
        federation.kill_node(3)
        assert run.wait(400).startswith("finished:completed"), run.log()
        relay.close()
        assert 4 not in federation.nodes
    assert b"fedlane.flower.node.prefork" in (tmp_path / "client-0.parent").read_bytes()
    text, result = log(tmp_path), Run.load(tmp_path / "state")
    lines, ids = text.splitlines(), {name: member["node_id"] for name, member in members(tmp_path).items()}
    for reason in (
        "'w' is not finite",
        "'w' must be (1000,) of float32, got (999,)",
        "the update's norm",
        "the report is for client 'client-0', the order was for client 'client-1'",
        "num-examples must be above 0 and at most 1000",
    ):
        assert any("client client-1, lane" in line and reason in line for line in lines), (reason, text)
    for client in ("client-2", "client-3", "client-4"):
        assert any(f"round 5, node {ids[client]}, client {client}" in line and "no answer" in line for line in lines), (
            text
        )
    # Honest clients add 1 to every weight, and one was punctual in every round: nothing else entered the model.
    assert all(count > 0 for count in result.rounds["punctual"].to_pylist()), text
    np.testing.assert_array_equal(result.model["w"], np.full(1000, 7, np.float32))
    assert result.model["n"].dtype == np.int64
    assert result.model["n"][0] == 7
    late = {(row["round"], row["client"]) for row in result.assignments.to_pylist() if not row["punctual"]}
    assert {(round, 1) for round in range(5)} | {(5, 2), (5, 3), (5, 4)} <= late
    # Nothing is undercounted: no client has more uploads than orders, and epsilon is at least its own figure.
    for name, member in members(tmp_path).items():
        count = len(uploads(tmp_path, name))
        row = result.clients.to_pylist()[member["index"]]
        assert count <= member["sent"] == row["uploads"]
        assert row["epsilon"] >= 0.25 * count
    # A client without budget is not asked again.
    assert members(tmp_path)["client-1"]["sent"] == 5
    rows = [row for row in result.client_rounds.to_pylist() if row["client"] == 1]
    assert [row["round"] for row in rows if not row["available"]] == [5, 6]
    assert result.summary["flower"]["floor_s"] == 4.5
    assert result.scenario.network.deadline_s == 20.0
    assert max(result.rounds["delay_s"].to_pylist()) < 20.05


def test_killed_and_resumed(tmp_path):
    """The ServerApp is killed, then SuperLink: each time the next run continues, and no upload is forgotten."""
    config = {"clients": 2, "lanes": 1, "rounds": 5, "deadline": 20.0, "folder": str(tmp_path)}

    def played():
        saved = StateStore(tmp_path / "state").load()
        return 0 if saved is None else len(saved.part("scheduler")["epsilon"])

    def all_uploads():
        return [upload for client in ("client-0", "client-1") for upload in uploads(tmp_path, client)]

    with Federation(tmp_path) as federation:
        for number in range(2):
            federation.start_node(number, nap=2.0)  # long enough to be interrupted
        federation.run("faults", config)
        wait_for(lambda: played() == 1 and len(all_uploads()) == 2, 300, lambda: federation.log("superlink"))
        os.kill(int((tmp_path / "server.pid").read_text()), signal.SIGKILL)  # in the middle of round 1
        before = Run.load(tmp_path / "state")
        federation.run("faults", config)
        wait_for(lambda: played() == 2 and len(all_uploads()) == 4, 300, lambda: federation.log("superlink"))
        federation.kill_superlink()  # in the middle of round 2; a ServerApp that outlives it is stopped when it is back
        federation.start_superlink()
        run = federation.run("faults", config)
        assert run.wait(300).startswith("finished:completed"), run.log()
    result = Run.load(tmp_path / "state")
    assert result.rounds["round"].to_pylist() == [0, 1, 2, 3, 4]
    assert result.rounds["delay_s"].to_pylist()[0] == before.rounds["delay_s"].to_pylist()[0]
    punctual = sum(count > 0 for count in result.rounds["punctual"].to_pylist())
    np.testing.assert_array_equal(result.model["w"], np.full(1000, punctual, np.float32))
    lines = (tmp_path / "state" / "orders.jsonl").read_text().splitlines()
    ordered = [json.loads(line)["round"] for line in lines]
    assert ordered == sorted(ordered)
    assert (set(ordered), ordered.count(1)) == ({0, 1, 2, 3, 4}, 2)
    assert len(ordered) <= 7  # one more round may have been cut off
    assert len(all_uploads()) <= len(ordered) == sum(result.clients["uploads"].to_pylist())
    for name, member in members(tmp_path).items():
        row = result.clients.to_pylist()[member["index"]]
        assert row["epsilon"] >= 0.25 * len(uploads(tmp_path, name))
    assert punctual >= 3
    assert not any(member["barred"] for member in members(tmp_path).values())
    assert json.loads(Path(tmp_path / "state" / "status.json").read_text())["state"] == "finished"


def test_a_hundred_clients_in_the_simulation_engine(tmp_path):
    """The same strategy on Flower's in-memory grid (Ray)."""
    config = {"clients": 100, "lanes": 4, "rounds": 8, "deadline": 60.0, "folder": str(tmp_path)}
    engine = {"num-supernodes": 100, "client-resources-num-cpus": 1, "init-args-num-cpus": 4}
    with Federation(tmp_path, simulation=True) as federation:
        run = federation.run("faults", config, engine)
        assert run.wait(400).startswith("finished:completed"), run.log() + log(tmp_path)
    result = Run.load(tmp_path / "state")
    assert len(result.clients) == 100
    rows = result.assignments.to_pylist()
    assert len(rows) == 8 * 4
    assert np.mean([row["punctual"] for row in rows]) > 0.9, log(tmp_path)
    assert result.model["w"][0] == sum(count > 0 for count in result.rounds["punctual"].to_pylist())
