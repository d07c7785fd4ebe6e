"""Run folders whose ledger was edited and its digests computed again: refused, or called a failure."""

import json
import shutil

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.cli import main
from fedlane.privacy.run_ledger import NAME, _line
from fedlane.simulation.run_agreement import read_agreeing_accounts
from fedlane.validate import InputError

pytestmark = pytest.mark.slow

SETTINGS = {
    "rigorous": ["privacy.mechanism=rigorous", "privacy.max_uploads=6"],
    "unequal": ["data.partition=dirichlet", "data.noniid_degree=0.5", "privacy.epsilon=[6,6,6,6,6,9,9,9,9,9]"],
    "paper": ["privacy.mechanism=paper", "privacy.epsilon=0.8", "privacy.delta=1e-3", "learning.batch_size=10"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Run folders of ten rounds and two seeds."""
    root = tmp_path_factory.mktemp("runs")
    for name, settings in SETTINGS.items():
        scenario = Scenario.load("quickstart").with_settings(settings)
        simulate(scenario, rounds=10, seeds=[3, 5], learning=False).save(root / name)
    return root


def edited(source, folder, change):
    """Return a copy of a run folder whose ledger was changed and chained again."""
    shutil.copytree(source, folder)
    lines = [json.loads(line) for line in (folder / NAME).read_text().splitlines()]
    for line in lines:
        del line["digest"]
    change(lines)
    digest, text = "", ""
    for line in lines:
        new, digest = _line(line, digest)
        text += new
    (folder / NAME).write_text(text)
    return folder


def term(name, factor):
    def change(lines):
        for terms in lines[0]["terms"]:
            terms[name] = terms[name] * factor if factor else 1e6

    return change


def uploads(make):
    def change(lines):
        lines[1]["uploads"] = make(lines[1]["uploads"])

    return change


def swapped_kinds(lines):
    lines[0]["clients"][0] = lines[0]["clients"][0][::-1]
    lines[0]["clients"][1] = lines[0]["clients"][1][::-1]


def without_uploads(lines):
    for line in lines[2:]:
        line["uploads"] = []


def header(**values):
    return lambda lines: lines[0].update(values)


EDITS = {
    "noise x 10": term("step_noise", 10),
    "noise x 1.05": term("step_noise", 1.05),
    "noise x 0.95": term("step_noise", 0.95),
    "noise x 0.05": term("step_noise", 0.05),
    "rate / 50": term("sample_rate", 0.02),
    "rate x 1.01": term("sample_rate", 1.01),
    "histogram noise 1e6": term("histogram_noise", 0),
    "upload noise": term("upload_noise", 0),
    "epsilon": term("epsilon", 2),
    "delta": term("delta", 2),
    "max_uploads": term("max_uploads", 2),
    "iterations": term("local_iterations", 2),
    "repeated upload": uploads(lambda pairs: pairs[:1] * 2 + pairs[1:]),
    "upload repeated often": uploads(lambda pairs: pairs * 2000),
    "negative client": uploads(lambda pairs: [[0, -1]]),
    "negative replica": uploads(lambda pairs: [[-1, 0]]),
    "client too large": uploads(lambda pairs: [[0, 10]]),
    "three numbers": uploads(lambda pairs: [[0, 0, 0]]),
    "fractions": uploads(lambda pairs: [[0.0, 1.0]]),
    "truth values": uploads(lambda pairs: [[False, True]]),
    "text": uploads(lambda pairs: "00"),
    "unsorted": uploads(lambda pairs: pairs[::-1]),
    "uploads removed": without_uploads,
    "other seeds": header(seeds=[-1, 5]),
    "other data set": header(dataset="mnist"),
}


def command(monkeypatch, capsys, *arguments):
    """Return exit status, output and errors of a command, which must end without a traceback."""
    monkeypatch.setattr("sys.argv", ["fedlane", *map(str, arguments)])
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", SETTINGS)
def test_folders_of_honest_runs_agree(folders, name):
    folder = folders / name
    accounts = read_agreeing_accounts(folder, Scenario.load(folder / "scenario.toml"))
    assert accounts.uploads.sum() == 2 * 10 * 4


@pytest.mark.parametrize("name", SETTINGS)
def test_every_edit_of_a_run_s_ledger_is_noticed(folders, tmp_path, name, monkeypatch, capsys):
    """An edit whose digests were computed again; some change nothing, where a mechanism does not have the value."""
    original = read_agreeing_accounts(folders / name, Scenario.load(folders / name / "scenario.toml"))
    tried = 0
    edits = {**EDITS, "other kinds": swapped_kinds} if name == "unequal" else EDITS
    for number, (edit, change) in enumerate(edits.items()):
        folder = edited(folders / name, tmp_path / str(number), change)
        scenario = Scenario.load(folder / "scenario.toml")
        if name == "paper" and edit.startswith("noise x"):
            assert read_agreeing_accounts(folder, scenario).terms == original.terms  # its steps have no noise
            continue
        with pytest.raises(InputError):
            read_agreeing_accounts(folder, scenario)
        for arguments in (("account",), ("audit", "--trials", 400)):
            status, _, errors = command(monkeypatch, capsys, "privacy", *arguments, folder)
            assert (status, errors.count("\n")) == (2, 1), (edit, errors)
        tried += 1
    assert tried >= len(EDITS) - 4


def test_more_uploads_than_agreed_are_called_a_failure(folders, tmp_path, monkeypatch, capsys):
    """Client 0 uploads in every round, which is more than its terms allow; the tables have fewer."""

    def every_round(lines):
        for line in lines[1:]:
            line["uploads"] = sorted([*(pair for pair in line["uploads"] if pair != [0, 0]), [0, 0]])

    folder = edited(folders / "rigorous", tmp_path / "run", every_round)
    for path in (folder, folder / NAME):
        status, output, _ = command(monkeypatch, capsys, "privacy", "account", path)
        assert (status, "FAILED: 1 of 20 accounts exceed the agreed budget." in output) == (0, True)
        rows = json.loads(command(monkeypatch, capsys, "privacy", "account", path, "--json")[1])
        assert [row["budget"] for row in rows].count("EXCEEDED") == 1
    status, output, _ = command(monkeypatch, capsys, "privacy", "audit", folder, "--trials", 400)
    assert (status, "FAILED: a client made 10 uploads of 6 and spent epsilon" in output) == (0, True)
    report = json.loads(command(monkeypatch, capsys, "privacy", "audit", folder, "--trials", 400, "--json")[1])
    assert report["kinds"][0]["budget_exceeded"]
    assert report["kinds"][0]["epsilon_accounted"] > 8.0
    assert not np.any([row["budget"] == "EXCEEDED" for row in _rows(folders / "rigorous", monkeypatch, capsys)])


def _rows(folder, monkeypatch, capsys):
    return json.loads(command(monkeypatch, capsys, "privacy", "account", folder, "--json")[1])


def test_a_ledger_alone_whose_noise_is_too_small_is_called_a_failure(folders, tmp_path, monkeypatch, capsys):
    folder = edited(folders / "rigorous", tmp_path / "run", term("step_noise", 0.3))
    (folder / "scenario.toml").unlink()
    assert "FAILED: " in command(monkeypatch, capsys, "privacy", "account", folder / NAME)[1]
    status, _, errors = command(monkeypatch, capsys, "privacy", "account", folder)
    assert (status, "is not a run folder" in errors) == (2, True)


@pytest.mark.slow
def test_more_uploads_than_agreed_are_a_failure_under_the_paper_s_mechanism(folders, tmp_path, monkeypatch, capsys):
    """Client 0 may upload 5 times and has uploaded in all ten rounds of the ledger, which is shown without its run."""

    def too_many(lines):
        lines[0]["terms"] = [{**terms, "max_uploads": 5} for terms in lines[0]["terms"]]
        for line in lines[1:]:
            line["uploads"] = [[0, 0]]

    folder = edited(folders / "paper", tmp_path / "run", too_many)
    status, output, _ = command(monkeypatch, capsys, "privacy", "account", folder / NAME)
    assert (status, "FAILED: 1 of 20 accounts exceed the agreed budget." in output) == (0, True)
