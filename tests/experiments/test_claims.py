"""The claims on small made-up stores whose answers are known."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlane.experiments.claims import CLAIMS, Verdict, judge, table
from fedlane.experiments.claims.evidence import Case
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, _save
from fedlane.records import FloatArray

ROUNDS, SEEDS, CLIENTS, CHANNELS = 40, 3, 10, 4
PLAN = ReproductionPlan(FIGURES, SEEDS, SEEDS)
KINDS = {"random": 4.0, "round-robin": 3.8, "lane": 1.0, "genie": 0.9}


def speed(cell: Experiment) -> float:
    """The mean round time of a cell: falls with V, OM below GMBA, both below every baseline."""
    if cell.policy.startswith("mamab"):
        v = float(cell.policy.split("V=")[1].split(",")[0])
        return 2.5 - 0.4 * np.log10(v) + (0.5 if "gmba" in cell.policy else 0.0)
    return KINDS.get(cell.policy, 3.5)


def skill(cell: Experiment) -> float:
    """The final accuracy: falls with V a little, above every baseline's; privacy costs a fifth."""
    private = 0.2 if cell.setting in ("private", "epsilon-0.8") else 0.0
    return 0.5 + 0.1 * speed(cell) / 2.5 * cell.policy.startswith("mamab") - private


def fill(
    store: ResultStore,
    delay: Callable[[Experiment], float] = speed,
    accuracy: Callable[[Experiment], float] | None = skill,
) -> ResultStore:
    """A whole store: constant delays and curves that saturate at the given levels, with a little noise a seed."""
    cells = [cell for cell in PLAN.scheduled() if not cell.setting.startswith(("clients-", "channels-"))]
    learned = set(PLAN.learned()) if accuracy is not None else set()
    tested = np.arange(0, ROUNDS, 2)
    for cell in cells:
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            client = np.argsort(rng.random((ROUNDS, CLIENTS)), axis=1)[:, :CHANNELS]
            delay_s = delay(cell) + 0.01 * rng.random(ROUNDS)
            arrays = {
                "client": client,
                "punctual": np.ones(client.shape, np.bool_),
                "delay_s": delay_s,
                "queue": np.full((ROUNDS, CLIENTS), 1.0 + seed),
                "quota": np.linspace(0.39, 0.41, CLIENTS),
            }
            _save(store._path("schedule", cell, seed), arrays)
            if cell in learned and accuracy is not None:
                curve = accuracy(cell) * (1 - 0.5 * np.exp(-tested / 4.0)) + 0.001 * rng.standard_normal()
                keep(store, cell, seed, tested, np.cumsum(delay_s)[tested], curve)
    return store


def keep(
    store: ResultStore, cell: Experiment, seed: int, tested: np.ndarray, clock_s: FloatArray, curve: FloatArray
) -> None:
    arrays = {"round": tested, "clock_s": clock_s[None], "accuracy": curve[None], "loss": 1 - curve[None]}
    _save(store._path("learned", cell, seed), arrays)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[Verdict]:
    return judge(PLAN, fill(ResultStore(tmp_path_factory.mktemp("store"), ROUNDS)))


def test_all_claims_are_judged_in_order(verdicts: list[Verdict]) -> None:
    assert [verdict.number for verdict in verdicts] == list(range(1, 35))
    assert len(CLAIMS) == 34
    for verdict in verdicts:
        assert verdict.verdict != "not computed", verdict
        assert verdict.effect is not None
        assert verdict.low is not None
        assert verdict.high is not None
        assert verdict.low <= verdict.effect <= verdict.high


@pytest.mark.parametrize("number", [1, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 22, 24, 26, 27, 29, 33])
def test_what_was_built_in_is_found(verdicts: list[Verdict], number: int) -> None:
    assert verdicts[number - 1].verdict == "holds", verdicts[number - 1]


@pytest.mark.parametrize("number", [5, 12, 19, 20, 21, 28, 32, 34])
def test_what_was_left_out_is_not_found(verdicts: list[Verdict], number: int) -> None:
    assert verdicts[number - 1].verdict == "does not hold", verdicts[number - 1]


def test_effects_are_the_built_in_ones(verdicts: list[Verdict]) -> None:
    """GMBA's step from V = 1 to 10 is the smallest: 0.4 of 3 seconds, and 0.01 / 2 of noise in the mean."""
    effect = verdicts[3].effect
    assert effect is not None
    assert abs(effect - 0.4 / 3.005) < 0.001
    assert "GMBA V=10 below V=1" in verdicts[3].detail


def test_reversed_worlds_turn_the_verdicts(tmp_path: Path) -> None:
    """Slower and less accurate with more V, and the baselines better in both."""
    found = judge(
        PLAN, fill(ResultStore(tmp_path, ROUNDS), lambda cell: 4.5 - speed(cell), lambda cell: 0.9 - skill(cell))
    )
    for number in (1, 4, 6, 7, 8, 10, 11, 13, 14, 15, 16, 17, 22, 24, 26, 27, 29):
        assert found[number - 1].verdict == "does not hold", found[number - 1]


def test_readings_are_named(tmp_path: Path) -> None:
    """With the literal bonus V has no effect; and only V = 100 beats the baselines."""

    def delay(cell: Experiment) -> float:
        if cell.reading == "literal":
            return 3.0
        return speed(cell) if "V=100" in cell.policy or not cell.policy.startswith("mamab") else 2 + speed(cell)

    found = judge(PLAN, fill(ResultStore(tmp_path, ROUNDS), delay, None))
    assert found[3].verdict == "holds under reading 11", found[3]
    assert found[25].verdict == "holds under reading 14", found[25]
    assert found[0].verdict == "not computed"
    assert "learned of" in found[0].detail


def test_missing_data_is_not_computed(tmp_path: Path) -> None:
    found = judge(PLAN, ResultStore(tmp_path, ROUNDS))
    assert [verdict.number for verdict in found] == list(range(1, 35))
    assert {verdict.verdict for verdict in found} == {"not computed"}
    assert all(verdict.effect is None and verdict.detail for verdict in found)


def test_one_missing_seed_is_enough(tmp_path: Path) -> None:
    store = fill(ResultStore(tmp_path, ROUNDS))
    store._path("learned", Experiment("fashion-mnist", "random"), 1).unlink()
    found = judge(PLAN, store)
    assert found[0].verdict == "not computed"
    assert "1 of 3 seeds" in found[0].detail
    assert found[6].verdict == "holds"


def test_intervals_are_paired_student_intervals() -> None:
    values = np.array([1.0, 2.0, 3.0])
    mean, low, high = Case("", values).interval
    half = 4.302652729911275 / np.sqrt(3)
    assert mean == 2.0
    assert np.allclose([low, high], [2 - half, 2 + half])
    assert not Case("", values).holds
    assert Case("", values + 1).holds
    assert Case("", values, bound=5.0, below=True).holds
    assert not Case("", values, bound=4.0, below=True).holds


def test_table_has_a_row_for_each_claim(verdicts: list[Verdict]) -> None:
    lines = table([*verdicts[:-1], replace(verdicts[-1], detail="a|b")]).splitlines()
    assert len(lines) == 2 + 34
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines)
    assert [int(line.split("|")[1]) for line in lines[2:]] == list(range(1, 35))
