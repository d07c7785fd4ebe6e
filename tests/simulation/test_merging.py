"""Runs that differ in their seeds alone become the run of all seeds."""

import json
import shutil

import numpy as np
import pytest

from fedlane import Run, Scenario, Simulation, simulate
from fedlane.simulation.merging import merge_runs
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError
from support.terminal import fedlane

SMALL = {"rounds": 8, "network.clients": 6, "learning.evaluate_every": 4, "learning.batch_size": 8000}
SCENARIO = Scenario.load("quickstart").with_values(SMALL)
"""Every sample has all records of a client, so that epsilon has a closed form."""
LEARNING = SCENARIO.with_values({"learning.batch_size": 64})
PAPER = SCENARIO.with_values({"privacy.mechanism": "paper"})


def same_schedule(one, two):
    """Equal to the bit, epsilons and the ledger included."""
    for name, table in one.tables.items():
        kept = [column for column in table.column_names if column not in ("accuracy", "loss")]
        assert table.select(kept).equals(two.tables[name].select(kept)), name
        assert table.schema.equals(two.tables[name].schema), name
    assert one.ledger == two.ledger
    assert one.scenario == two.scenario


def facts(summary):
    return {key: value for key, value in summary.items() if key not in ("elapsed_s", "final_accuracy")}


@pytest.mark.parametrize("scenario", [SCENARIO, PAPER], ids=lambda scenario: scenario.privacy.mechanism)
@pytest.mark.parametrize("policy", ["lane", "mamab-om:V=3", "random"])
def test_merged_seeds_are_the_run_of_all_seeds_to_the_bit(scenario, policy):
    parts = {str(seeds): simulate(scenario, policy, seeds=seeds, learning=False) for seeds in ((7,), (0, 3), (2,))}
    merged, together = merge_runs(parts), simulate(scenario, policy, seeds=[0, 2, 3, 7], learning=False)
    same_schedule(merged, together)
    assert facts(merged.summary) == facts(together.summary)
    assert merged.settings == together.settings
    assert merged.provenance["kind"] == "merge"
    assert len(merged.provenance["sessions"]) == 3


@pytest.mark.slow
def test_models_and_curves_are_merged(tmp_path):
    for name, seeds in (("b", [4, 2]), ("a", [1])):
        simulate(LEARNING, "lane", seeds=seeds).save(tmp_path / name)
    result = fedlane("merge", "b", "a", "--out", "o", "--json", cwd=tmp_path, code=0)
    merged, together = Run.load(tmp_path / "o"), simulate(LEARNING, "lane", seeds=[1, 2, 4])
    same_schedule(merged, together)
    assert json.loads(result.stdout) == {**merged.summary, "folder": "o"}
    assert merged.model.keys() == together.model.keys()
    for name, tensor in together.model.items():
        np.testing.assert_allclose(merged.model[name], tensor, atol=1e-5, err_msg=name)
    accuracy = [run.rounds["accuracy"].to_numpy() for run in (merged, together)]
    np.testing.assert_allclose(*accuracy, atol=1e-3)
    assert merged.summary["final_accuracy"]["mean"] == pytest.approx(
        together.summary["final_accuracy"]["mean"], abs=1e-3
    )
    assert "Saved to p" in fedlane("merge", "a", "b", "--out", "p", cwd=tmp_path, code=0).stdout
    fedlane("replay", "o", "--quiet", cwd=tmp_path, code=0)
    assert json.loads((tmp_path / "p" / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("change", "policy", "message"),
    [
        ({"network.deadline_s": 4.0}, "lane", "a and b differ in network.deadline_s: 5.0 and 4.0"),
        ({"rounds": 9}, "lane", "a and b differ in rounds: 8 and 9"),
        ({"learning.learning_rate": 0.2}, "lane", "a and b differ in learning.learning_rate: 0.3 and 0.2"),
        ({}, "random", "a and b differ in policy: 'lane' and 'random'"),
        ({}, "lane:V=2", "a and b differ in policy: 'lane' and 'lane:V=2'"),
        ({"policies.lane.V": 2.0}, "lane", "a and b differ in policies.lane"),
    ],
)
def test_the_first_other_difference_is_named(change, policy, message):
    first = simulate(SCENARIO, "lane", seeds=[0], learning=False)
    second = simulate(SCENARIO.with_values(change), policy, seeds=[1], learning=False)
    with pytest.raises(InputError) as error:
        merge_runs({"a": first, "b": second})
    assert str(error.value).startswith(message)


@pytest.mark.slow
def test_what_cannot_be_merged_is_one_line(tmp_path):
    simulate(SCENARIO, seeds=[0, 1], learning=False).save(tmp_path / "a")
    simulate(SCENARIO, seeds=[1, 2], learning=False).save(tmp_path / "b")
    simulate(SCENARIO, seeds=[5]).save(tmp_path / "learned")
    half = Simulation(SCENARIO, "lane", [3])
    half.play(until=3)
    RunFolder.create(tmp_path / "half").write(half.result(), checkpoint=half.checkpoint())
    simulate(SCENARIO, seeds=[4], learning=False).save(tmp_path / "flower")
    summary = json.loads((tmp_path / "flower" / "summary.json").read_text())
    (tmp_path / "flower" / "summary.json").write_text(json.dumps({**summary, "flower": {}}))
    shutil.copytree(tmp_path / "a", tmp_path / "version")
    (tmp_path / "version" / "summary.json").write_text(json.dumps({**summary, "seeds": [8, 9], "version": "0.0.9"}))
    for others, message in (
        (("b",), "a and b both have seed 1"),
        (("a",), "merge needs at least two run folders"),
        (("half",), "half is not finished: it has 3 of 8 rounds"),
        (("flower",), "flower cannot be merged: it was recorded by a real federation (Flower)"),
        (("learned",), "a and learned differ in learning: False and True"),
        (("version",), "a and version differ in version of FedLane: '0.1.0' and '0.0.9'"),
        (("nowhere",), "run folder nowhere does not exist"),
        ((), "merge needs at least two run folders"),
    ):
        result = fedlane("merge", "a", *others, "--out", "o", cwd=tmp_path, code=2)
        assert result.stderr.startswith(f"fedlane: {message}"), result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "o").exists()
    full = fedlane("merge", "b", "learned", "--out", "a", cwd=tmp_path, code=2)
    assert "differ in learning" in full.stderr
    assert "Missing option '--out'" in fedlane("merge", "a", "b", cwd=tmp_path, code=2).stderr


def test_a_table_that_does_not_fit_its_summary_is_one_line(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        simulate(SCENARIO, seeds=[seed], learning=False).save(tmp_path / name)
    path = tmp_path / "b" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": [6]}))
    result = fedlane("merge", "a", "b", "--out", "o", cwd=tmp_path, code=2)
    assert "do not have seed 6" in result.stderr
