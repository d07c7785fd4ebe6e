"""Files of the time of writing are opened, continued and written again in the same form."""

import json
import shutil
import sys
from dataclasses import replace
from unittest import mock

import cases
import numpy as np
import opening
import pytest
from cases import FILES, HALF_WAY, PLAYED, arithmetic
from golden_checks import differing, same_curves, same_run
from make import SERVER_ROUNDS, reproduce

from fedlane import Run, Scenario


@pytest.fixture
def copied(tmp_path):
    """Copy a stored file or folder to where a test may change it."""

    def copy(name):
        source, target = FILES / name, tmp_path / name
        return shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    return copy


def test_a_finished_run_folder_is_read(digests):
    same_run(cases.run_record(Run.load(FILES / "run-folder")), digests["finished"])
    assert Scenario.load(FILES / "run-folder" / "scenario.toml").network == cases.FINISHED.scenario.network


def test_a_finished_run_folder_is_shown_and_reported(capsys, tmp_path):
    summary = json.loads((FILES / "run-folder" / "summary.json").read_text())
    assert opening.command("show", FILES / "run-folder", "--json") == 0
    assert json.loads(capsys.readouterr().out) == summary
    assert opening.command("show", FILES / "run-folder") == 0
    assert "lane" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert opening.command("report", FILES / "run-folder", FILES / "half-way", "--out", page, "--quiet") == 0
    assert page.stat().st_size > 10_000


def test_a_run_writes_the_folder_that_is_stored(tmp_path):
    cases.FINISHED.run(learning=True).save(tmp_path / "o")
    stored, written = FILES / "run-folder", tmp_path / "o"
    names = [path.name for path in written.iterdir() if path.name != "provenance.json"]  # written since then
    assert sorted(names) == sorted(path.name for path in stored.iterdir())
    scenario, run_table, _ = (written / "scenario.toml").read_text().partition("\n[run]\n")  # written since then
    assert run_table
    for line in cases.LINES_SINCE:
        assert line in scenario
        scenario = scenario.replace(line, "")
    assert scenario.replace("[policies.lane-2026]", "[policies.lane]") == (stored / "scenario.toml").read_text()
    assert (written / "status.json").read_text() == (stored / "status.json").read_text()
    now, then = (json.loads((folder / "summary.json").read_text()) for folder in (written, stored))
    assert set(now) >= cases.MEASURES_SINCE
    assert [key for key in now if key not in cases.MEASURES_SINCE] == list(then)
    same_run(cases.run_record(Run.load(written)), cases.run_record(Run.load(stored)))


def test_an_interrupted_run_is_resumed_to_the_end_of_an_uninterrupted_one(copied, digests):
    folder = copied("half-way")
    assert json.loads((folder / "status.json").read_text()) == {"round": PLAYED, "rounds": 14, "state": "interrupted"}
    assert opening.command("run", "--resume", folder, "--quiet") == 0
    same_run(cases.run_record(Run.load(folder)), digests["half-way"])
    assert not (folder / "checkpoint.npz").exists()


def test_an_interrupted_run_writes_the_checkpoint_that_is_stored(tmp_path):
    opening.interrupt(cases.played(HALF_WAY, PLAYED), tmp_path / "o")
    with np.load(FILES / "half-way" / "checkpoint.npz") as then, np.load(tmp_path / "o" / "checkpoint.npz") as now:
        constants = {"state.quota", "state.deadline_s"}  # part of the policy's state when the file was written
        names = [name for name in then.files if name not in constants]
        assert [name for name in now.files if name not in cases.ARRAYS_SINCE] == names  # stored since then
        assert (str(then["_label"]), str(now["_label"])) == ("lane", cases.RENAMED["lane"])
        for name in set(names) - {"_label"}:
            assert (now[name].dtype, now[name].shape) == (then[name].dtype, then[name].shape), name
            if now[name].dtype.kind == "f":
                np.testing.assert_allclose(now[name], then[name], rtol=1e-4, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(now[name], then[name], err_msg=name)


def test_a_saved_schedule_is_learned_from(tmp_path, digests, capsys):
    import runpy

    out, then = tmp_path / "curves.npz", digests["saved-schedule"]["curves"]
    arguments = ["replay", str(FILES / "schedule.npz"), "--out", str(out), "--weights"]
    sys.modules.pop("fedlane.learning.replay", None)
    with mock.patch.object(sys, "argv", arguments):
        runpy.run_module("fedlane.learning.replay", run_name="__main__")
    assert "2 replicas x 20 rounds" in capsys.readouterr().out
    with np.load(out) as curves:
        rows = [20 * replica + round for replica in range(2) for round in curves["round"].tolist()]
        now = {name: curves[name].ravel().tolist() for name in ("accuracy", "loss")}
        assert curves["weights"].shape == (2, 784 * 64 + 64 + 64 * 10 + 10)
    same_curves({**then, "row": rows, **now}, then)


def test_a_run_s_ledger_is_read(capsys):
    run, accounts = Run.load(FILES / "run-folder"), opening.run_accounts(FILES / "run-folder")
    assert (accounts.dataset, accounts.seeds) == ("fashion-mnist-mini", (0, 1))
    assert accounts.uploads.ravel().tolist() == run.clients["uploads"].to_pylist()
    assert opening.command("privacy", "account", FILES / "run-folder", "--json") == 0
    assert json.loads(capsys.readouterr().out)


def test_a_client_s_ledger_is_continued(copied, capsys):
    path = copied("client") / "ledger"
    assert opening.command("privacy", "account", path, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    with opening.open_client_ledger(path) as ledger:
        assert ledger.client == "client 7"
        assert {name: account.uploads for name, account in ledger.accounts.items()} == {"images": 3, "letters": 1}
        assert ledger.histogram("images", lambda: [0.0]) == (10.2, 3.5, -1.0)
        assert ledger.open_account("images", opening.ledger_terms()).left == 3
        assert ledger.reserve("images", 6, server_count=3).uploads == 4
    with opening.open_client_ledger(path) as ledger:
        assert ledger.accounts["images"].left == 2


def test_a_client_s_ledger_is_written_as_it_is_stored(tmp_path):
    opening.create_client_ledger(tmp_path / "ledger")
    for name in ("ledger", "ledger.head"):
        assert (tmp_path / name).read_bytes() == (FILES / "client" / name).read_bytes()


def test_a_server_s_state_is_continued(copied, digests):
    folder, then = copied("server-state"), digests["server"]
    server = opening.Server(folder, SERVER_ROUNDS[1])
    assert server.round == SERVER_ROUNDS[0]
    while server.round < SERVER_ROUNDS[1]:
        server.play()
    now = opening.server_record(folder)
    if arithmetic() in then["state"]:
        assert now["orders"][arithmetic()] == then["orders"][arithmetic()]
        assert now["state"][arithmetic()] == then["state"][arithmetic()], differing(now, then)
    assert len(Run.load(folder).rounds) == SERVER_ROUNDS[1]


def test_a_strategy_opens_a_server_s_state(copied):
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAdam

    from fedlane.flower import LaneStrategy

    folder = copied("server-state")
    strategy = LaneStrategy(
        FedAdam(fraction_evaluate=0.0), lanes=2, deadline_s=4.0, state_dir=folder, federation="golden"
    )
    initial = ArrayRecord({name: Array(array) for name, array in opening.initial_model().items()})
    result = strategy.start(None, initial, num_rounds=SERVER_ROUNDS[0])  # all are played: no grid is needed
    for name, array in Run.load(folder).model.items():
        np.testing.assert_array_equal(opening.server_model(result.arrays)[name], array)


def test_a_reproduction_is_continued(copied):
    folder = copied("reproduction")
    store, cell = opening.reproduction(folder)
    result = store.result(cell, 0)
    assert (result.client.shape, result.queue.shape) == ((100, 4), (100, 10))
    assert result.learned.round.tolist() == list(range(9, 100, 10))
    assert 0.5 < result.learned.accuracy[0, -1] < 0.9
    (gone,) = folder.glob("quick/schedule-100/*_mamab-om-V-10-quota_slack-0.125/seed-1.npz")
    gone.unlink()
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}
    assert len(kept) == 6
    assert store.missing("schedule", replace(cell, policy="mamab-om:V=10,quota_slack=0.125"), range(2)) == [1]
    assert store.missing("schedule", replace(cell, policy="lane"), range(2)) == [0, 1]  # those are of the former rule
    assert opening.command(*reproduce(folder)) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    with np.load(gone) as now, np.load(FILES / "reproduction" / gone.relative_to(folder)) as then:
        constants = {"state.quota", "state.deadline_s"}  # part of the policy's state when the file was written
        names = [name for name in then.files if name not in constants]
        assert [name for name in now.files if name not in cases.ARRAYS_SINCE] == names  # stored since then
        for name in names:
            np.testing.assert_allclose(now[name], then[name], rtol=1e-9, err_msg=name)
    assert any((folder / "quick" / "figures").iterdir())
