"""Run folders from strangers: every command ends in a result or in one clear line, and prints no control character."""

import itertools
import json
import random
import re
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Scenario
from support.nested import places, replaced
from support.terminal import fedlane

NESTED = "[" * 100_000 + "]" * 100_000
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\r‮evil"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f‪-‮⁦-⁩]")
SOME_OR_ALL = [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
"""Every 4th of the places that are attacked, or every one."""


def check(result, what):
    """Return whether a command was refused; it must end in a result or in one line, without control characters."""
    assert result.returncode in (0, 2), (what, result.stderr[-2000:])
    assert not CONTROL.search(result.stdout + result.stderr), what
    if result.returncode == 2:
        (line,) = result.stderr.splitlines()
        assert line.startswith("fedlane: "), what
    return result.returncode == 2


@pytest.mark.parametrize("every", SOME_OR_ALL)
def test_every_wrong_type_in_a_summary_is_a_result_or_one_line(folder, every):
    path = folder / "summary.json"
    good = json.loads(path.read_text())
    refused = 0
    wrongs = itertools.product(places(good), ("text", None, [], {}, -1, 1e308, True))
    for place, wrong in list(wrongs)[::every]:
        path.write_text(json.dumps(replaced(good, place, wrong)))
        refused += check(fedlane("show", folder, cwd=folder.parent), (place, wrong))
    for place in list(places(good))[:: 4 * every]:
        path.write_text(json.dumps(replaced(good, place, "text")))
        refused += check(fedlane("report", folder, "--out", folder / "page.html", cwd=folder.parent), place)
    assert refused > 50 / every


@pytest.mark.parametrize("command", ["show", "report", "run"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", NESTED),
        ("summary.json", '{"policy": ' + NESTED + "}"),
        ("summary.json", '"text"'),
        ("status.json", NESTED),
        ("scenario.toml", "a = " + NESTED),
        ("scenario.toml", "[" + "a." * 2_000 + "a]"),
        ("ledger.jsonl", NESTED + "\n"),
        ("ledger.jsonl", "\ud800"),
    ],
    ids=lambda text: text[:16].replace("/", " "),
)
def test_nested_and_foreign_texts_are_one_line(folder, command, name, text):
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    arguments = {"show": [folder], "report": [folder, "--out", folder / "page.html"], "run": ["--resume", folder]}
    check(fedlane(command, *arguments[command], cwd=folder.parent), (command, name))


def test_a_nested_scenario_is_one_line(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + NESTED)
    assert check(fedlane("show", "deep.toml", cwd=tmp_path), "deep.toml")
    assert check(fedlane("show", "quickstart", "--set", "rounds=" + NESTED[:9000], cwd=tmp_path), "--set")


def test_texts_of_a_folder_print_no_control_characters(folder):
    """Names in the summary, keys of the scenario, a ledger's names: all that commands print from a folder."""
    path = folder / "summary.json"
    good = json.loads(path.read_text())
    path.write_text(
        json.dumps({**good, "policy": ESCAPES, "scenario": f"[red]{ESCAPES}", "infeasible_seeds": {ESCAPES: 0.5}})
    )
    assert not check(fedlane("show", folder, cwd=folder.parent), "show")
    assert not check(fedlane("report", folder, "--out", folder / "page.html", cwd=folder.parent), "report")
    assert "\x1b" not in (folder / "page.html").read_text()
    scenario = folder / "scenario.toml"
    text = scenario.read_text()
    scenario.write_text(f"{json.dumps(ESCAPES)} = 1\n{text}")
    for arguments in (("show", folder), ("show", scenario), ("run", "--resume", folder)):
        assert check(fedlane(*arguments, cwd=folder.parent), arguments)
    scenario.write_text(f"name = {json.dumps(ESCAPES)}\n" + "\n".join(text.splitlines()[1:]))
    assert Scenario.load(scenario).name == ESCAPES
    shown = fedlane("show", scenario, cwd=folder.parent)
    assert not check(shown, "show scenario.toml")
    (folder.parent / "again.toml").write_text(shown.stdout)
    assert Scenario.load(folder.parent / "again.toml").name == ESCAPES


def test_names_in_a_client_s_ledger_print_no_control_characters(tmp_path):
    from fedlane.privacy import Terms
    from fedlane.privacy.ledger import ClientLedger

    with ClientLedger.create(tmp_path / "ledger", f"[red]{ESCAPES}") as ledger:
        ledger.open_account(f"[bold]{ESCAPES}", Terms("paper", 0.5, 2, 0.0, 1.0, 8.0, 1e-3, 6, 0.0))
    result = fedlane("privacy", "account", tmp_path / "ledger", cwd=tmp_path)
    assert not check(result, "account")
    assert "[red]" in result.stdout


@pytest.mark.parametrize("every", SOME_OR_ALL)
def test_a_changed_checkpoint_is_one_line(folder, every):
    """Every array replaced by one of another type or shape, and 100 flipped bytes."""
    path, chance = folder / "checkpoint.npz", random.Random(3)
    good = path.read_bytes()
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    wrongs = (
        np.array("text"),
        np.array(-1),
        np.zeros(0),
        np.zeros((3, 3, 3, 3)),
        np.array(["a", "b"]),
        np.array([2**62, -(2**62)]),
        np.array(1 + 2j),
        np.zeros((2, 2), dtype=[("x", int)]),
        np.array(["2020-01-01"], "datetime64[D]"),
    )
    tried = refused = 0
    for name, wrong in list(itertools.product(arrays, wrongs))[::every]:
        with path.open("wb") as file:
            np.savez(file, **{**arrays, name: wrong})
        copied = shutil.copytree(folder, folder.parent / f"copy{tried}")
        refused += check(fedlane("run", "--resume", copied, "--quiet", cwd=folder.parent), (name, wrong))
        shutil.rmtree(copied)
        tried += 1
    for _ in range(100 // every):
        flipped = bytearray(good)
        flipped[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        copied = shutil.copytree(folder, folder.parent / f"copy{tried}")
        refused += check(fedlane("run", "--resume", copied, "--quiet", cwd=folder.parent), "flipped")
        shutil.rmtree(copied)
        tried += 1
    assert refused > 100 / every


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "report"])
def test_a_small_file_with_very_many_rows_is_refused_at_once(folder, command):
    """200 million rows of equal values in a few kilobytes or megabytes."""
    path = folder / "rounds.parquet"
    schema = pq.read_schema(path)
    piece = pa.table({field.name: pa.nulls(2_000_000).cast(field.type) for field in schema})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(26):
            writer.write_table(piece)
    assert path.stat().st_size < 7e6
    arguments = [folder] if command == "show" else [folder, "--out", folder / "page.html"]
    result = fedlane(command, *arguments, cwd=folder.parent)
    assert check(result, command)
    assert "is too large: it has 52,000,000 rows" in result.stderr


def test_showing_a_folder_imports_nothing(folder, monkeypatch):
    """A model by import path is code: only a run imports it."""
    (folder.parent / "stranger.py").write_text("raise SystemExit(77)")
    monkeypatch.syspath_prepend(folder.parent)
    scenario = folder / "scenario.toml"
    changed = re.sub(r'(?ms)^(\[learning\]\nmodel = )"[a-z]+"$', r'\1"stranger:Net"', scenario.read_text())
    scenario.write_text(changed)
    assert Scenario.load(scenario).learning.model == "stranger:Net"
    for arguments in (("show", folder), ("show", scenario), ("report", folder, "--out", folder / "page.html")):
        assert not check(fedlane(*arguments, cwd=folder.parent), arguments)
    assert "stranger" not in sys.modules
