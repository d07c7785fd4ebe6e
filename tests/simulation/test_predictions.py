"""What a policy predicts about the uploads that it assigns: recorded, compared with what happened, never used."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane import Choice, Policy, Run, Simulation, check_policy, simulate
from fedlane.delay_predictions import NAMES, PredictedDelays, covered
from fedlane.rounds import PolicyError
from fedlane.scheduling.lane import Lane
from fedlane.simulation import trace_shape
from fedlane.simulation.merging import merge_runs
from fedlane.simulation.results import RunFolder
from support.small_runs import PAPER

TERMS = PAPER.with_values({"rounds": 40, "network.deadline_s": 2.1})
SEEDS = (700, 701)


class Silent(Lane):
    """`lane` that keeps its predictions to itself."""

    def select(self, state, context, rng):
        return super().select(state, context, rng).channel


def columns(run):
    return {name: run.assignments[name].to_numpy() for name in run.assignments.column_names}


@pytest.fixture(scope="module")
def run():
    return simulate(TERMS, "lane", seeds=SEEDS, learning=False)


def test_uploads_have_their_predictions_and_the_summary_their_coverage(run):
    table, shares = columns(run), {replica: [] for replica in range(len(SEEDS))}
    late_in_interval = 0
    for k in range(len(table["round"])):
        low, median, high = (table[name][k] for name in NAMES)
        assert 0 <= low <= median <= high <= np.float32(2.1)
        reaches = high == np.float32(2.1)
        inside = (
            reaches
            if not table["punctual"][k]
            else low <= table["delay_s"][k] and (reaches or table["delay_s"][k] <= high)
        )
        late_in_interval += bool(inside and not table["punctual"][k])
        shares[table["replica"][k]].append(inside)
    assert late_in_interval > 3
    assert run.assignments.schema.field("predicted_low_s").type == "float"
    mean = np.mean([np.mean(share) for share in shares.values()])
    assert run.summary["coverage_90"]["mean"] == pytest.approx(mean, abs=1e-12)
    assert run.summary["coverage_90"]["low"] < mean < run.summary["coverage_90"]["high"]


def test_predictions_are_made_before_the_upload_is_seen(run):
    """In the first round nothing was seen, so that both seeds have the same predictions."""
    table = columns(run)
    for name in NAMES:
        first, second = (table[name][(table["round"] == 0) & (table["replica"] == replica)] for replica in (0, 1))
        np.testing.assert_array_equal(first, second)


def test_predictions_change_no_decision(run):
    silent = simulate(TERMS, Silent(), seeds=SEEDS, learning=False)
    assert not set(NAMES) & set(silent.assignments.column_names)
    assert "coverage_90" not in silent.summary
    assert silent.assignments.equals(run.assignments.drop_columns(list(NAMES)))
    assert silent.rounds.equals(run.rounds)


def test_a_replica_s_predictions_depend_on_its_seed_alone(run):
    alone, together = columns(simulate(TERMS, "lane", seeds=SEEDS[1:], learning=False)), columns(run)
    for name in NAMES:
        np.testing.assert_array_equal(alone[name], together[name][together["replica"] == 1])


@pytest.mark.parametrize("bounded", [False, True])
def test_a_resumed_run_has_the_same_predictions(run, bounded, tmp_path, monkeypatch):
    if bounded:
        monkeypatch.setattr(trace_shape, "HELD_CHANNEL_ROWS", 20)
        monkeypatch.setattr(trace_shape, "SEGMENT_ROWS", 64)
    folder = RunFolder.create(tmp_path / "run")
    simulation = Simulation(TERMS, "lane", SEEDS, bounded=bounded)
    simulation.keep_segments_in(tmp_path / "run")
    simulation.play(until=25)
    folder.write(simulation.result(), checkpoint=simulation.checkpoint())
    resumed = Simulation.resume(tmp_path / "run")
    resumed.play()
    again = resumed.result()
    assert again.assignments.equals(run.assignments)
    assert again.summary["coverage_90"] == run.summary["coverage_90"]
    again.save(tmp_path / "saved")
    assert Run.load(tmp_path / "saved").assignments.equals(run.assignments)


def test_merged_runs_have_the_coverage_of_the_run_of_all_seeds(run):
    parts = {str(seed): simulate(TERMS, "lane", seeds=[seed], learning=False) for seed in SEEDS}
    merged = merge_runs(parts)
    assert merged.summary["coverage_90"] == run.summary["coverage_90"]
    assert merged.assignments.equals(run.assignments)


def test_a_late_upload_is_covered_if_its_interval_reaches_the_deadline():
    low, high = np.array([0.2, 0.2, 0.2, 0.2, 0.2, np.nan]), np.array([0.7, 0.7, 0.5, 0.5, 0.5, np.nan], np.float32)
    delay, punctual = np.array([np.nan, 0.7, 9.0, 0.5, 0.1, 0.1]), np.array([0, 1, 0, 1, 1, 1], bool)
    assert covered(low, high, delay, punctual, 0.7).tolist() == [True, True, False, True, False, False]


class Constant(Policy):
    """Assigns the first clients in order, and predicts the same delay for each."""

    name = "constant"
    ends = (0.5, 1.0, 2.0)

    def select(self, state, context, rng):
        rank = np.cumsum(context.available) - 1
        channel = np.where(context.available & (rank < context.problem.channels), rank, -1)
        return Choice(channel, self.stated(channel))

    def stated(self, channel):
        return PredictedDelays(*(np.where(channel >= 0, end, np.nan) for end in self.ends))


@pytest.mark.slow
def test_a_policy_for_one_replica_may_state_predictions():
    check_policy(Constant())
    result = simulate(TERMS, Constant(), seeds=SEEDS, learning=False)
    assert result.assignments["predicted_median_s"].to_pylist() == [1.0] * 320
    table = columns(result)
    inside = (table["delay_s"] >= 0.5) & (table["delay_s"] <= 2.0)
    assert result.summary["coverage_90"]["mean"] == pytest.approx(inside.mean())


class Hesitant(Constant):
    """Predicts nothing in every third round."""

    name = "hesitant"

    def select(self, state, context, rng):
        choice = super().select(state, context, rng)
        return choice.channel if context.round % 3 == 2 else choice


def test_uploads_without_a_prediction_are_not_counted(tmp_path):
    simulation = Simulation(TERMS, Hesitant(), SEEDS)
    simulation.play()
    result = simulation.result()
    table = columns(result)
    stated = table["round"] % 3 != 2
    np.testing.assert_array_equal(np.isnan(table["predicted_median_s"].astype(float)), ~stated)
    inside = (table["delay_s"] >= 0.5) & (table["delay_s"] <= 2.0)
    assert result.summary["coverage_90"]["mean"] == pytest.approx(inside[stated].mean())
    restored = Simulation(TERMS, Hesitant(), SEEDS)
    restored._restore(simulation.checkpoint())
    assert restored.result().assignments.equals(result.assignments)


def changes_the_state(self, state, context, rng):
    state["computed"] += 1
    return Lane.select(self, state, context, rng)


@pytest.mark.parametrize(
    ("base", "parts", "message"),
    [
        (Constant, {"ends": (0.5, 2.0, 1.0)}, "predictions must be finite, at least 0, and in the order"),
        (Constant, {"ends": (-0.5, 1.0, 2.0)}, "predictions must be finite, at least 0, and in the order"),
        (Constant, {"ends": (0.5, np.nan, 2.0)}, "predictions must be finite"),
        (Constant, {"stated": lambda *_: PredictedDelays(*np.zeros((3, 2)))}, "predictions must have shape"),
        (Lane, {"select": changes_the_state}, "select changed the state or the context"),
    ],
)
def test_the_checker_checks_predictions(base, parts, message):
    with pytest.raises(PolicyError, match=message):
        check_policy(type("Broken", (base,), parts)())


def test_forged_predictions_of_a_checkpoint_are_refused(tmp_path):
    simulation = Simulation(TERMS, "lane", SEEDS)
    simulation.play(until=10)
    saved = simulation.checkpoint()
    for name, change, message in (
        ("trace.predicted_low_s", lambda array: array - 9, "must be at least 0 and in order"),
        ("trace.predicted_high_s", lambda array: array * np.float32(0), "must be at least 0 and in order"),
        ("trace.predicted_median_s", lambda array: array * np.float32(np.nan), "must be at least 0 and in order"),
        ("trace.covered", lambda array: array + 1, "trace.covered does not agree with the predictions"),
    ):
        forged = replace(saved, arrays={**saved.arrays, name: change(saved.arrays[name])})
        RunFolder.create(tmp_path / name).write(simulation.result(), checkpoint=forged)
        with pytest.raises(ValueError, match=message):
            Simulation.resume(tmp_path / name)
