"""The claims on small synthetic stores with known answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlane.experiments.claims import CLAIMS, Verdict, judge, table, theory
from fedlane.experiments.long_runs import LONG_POLICIES, long_plan, long_store
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore, _save
from fedlane.records import FloatArray

pytestmark = pytest.mark.slow
ROUNDS, SEEDS, CLIENTS, CHANNELS = 40, 3, 10, 4
PLAN = ReproductionPlan(FIGURES, SEEDS, SEEDS)
KINDS = {"random": 4.0, "round-robin": 3.8, "lane": 1.0, "genie": 0.9}


def speed(experiment: Experiment) -> float:
    """Mean round time: falls with V, OM below GMBA, both below every baseline."""
    if experiment.policy.startswith("mamab"):
        v = float(experiment.policy.split("V=")[1].split(",")[0])
        return 2.5 - 0.4 * np.log10(v) + (0.5 if "gmba" in experiment.policy else 0.0)
    return KINDS.get(experiment.policy, 3.5)


def skill(experiment: Experiment) -> float:
    """Final accuracy: falls slightly with V, above every baseline's; stronger privacy costs 0.2."""
    private = 0.2 if experiment.setting in ("private", "epsilon-0.8") else 0.0
    return 0.5 + 0.1 * speed(experiment) / 2.5 * experiment.policy.startswith("mamab") - private


def schedule(seed: int, delay_s: float, rounds: int) -> dict[str, np.ndarray]:
    """The arrays of a schedule with random matchings, constant delays plus a little noise, and constant queues."""
    rng = np.random.default_rng(seed)
    client = np.argsort(rng.random((rounds, CLIENTS)), axis=1)[:, :CHANNELS]
    return {
        "client": client,
        "punctual": np.ones(client.shape, np.bool_),
        "delay_s": delay_s + 0.01 * rng.random(rounds),
        "queue": np.full((rounds, CLIENTS), 1.0 + seed),
        "quota": np.linspace(0.39, 0.41, CLIENTS),
    }


def fill(
    store: ResultStore,
    delay: Callable[[Experiment], float] = speed,
    accuracy: Callable[[Experiment], float] | None = skill,
) -> ResultStore:
    """Fill a store with constant delays and curves that saturate at the given levels, plus a little noise per seed."""
    experiments = [
        experiment for experiment in PLAN.scheduled() if not experiment.setting.startswith(("clients-", "channels-"))
    ]
    learned = set(PLAN.learned()) if accuracy is not None else set()
    tested = np.arange(0, ROUNDS, 2)
    for policy in LONG_POLICIES:
        for seed in range(SEEDS):
            long = long_store(store)
            _save(long._path("schedule", Experiment("fashion-mnist", policy), seed), schedule(seed, 2.0, long.rounds))
    for experiment in experiments:
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            arrays = schedule(seed, delay(experiment), ROUNDS)
            delay_s = arrays["delay_s"]
            _save(store._path("schedule", experiment, seed), arrays)
            if experiment in learned and accuracy is not None:
                curve = accuracy(experiment) * (1 - 0.5 * np.exp(-tested / 4.0)) + 0.001 * rng.standard_normal()
                write_curve(store, experiment, seed, tested, np.cumsum(delay_s)[tested], curve)
    return store


def write_curve(
    store: ResultStore, experiment: Experiment, seed: int, tested: np.ndarray, clock_s: FloatArray, curve: FloatArray
) -> None:
    arrays = {"round": tested, "clock_s": clock_s[None], "accuracy": curve[None], "loss": 1 - curve[None]}
    _save(store._path("learned", experiment, seed), arrays)


@pytest.fixture(scope="module", autouse=True)
def times() -> Iterator[None]:
    """Decisions of GMBA take half as long as OM's; no clock is asked."""
    seconds = np.linspace(0.9, 1.1, 20), 2 * np.linspace(0.9, 1.1, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory, "decision_times", lambda: seconds)
        patch.setattr(theory, "published_times", lambda: seconds)
        yield


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
def test_claims_that_the_store_satisfies_hold(verdicts: list[Verdict], number: int) -> None:
    assert verdicts[number - 1].verdict == "holds", verdicts[number - 1]


@pytest.mark.parametrize("number", [12, 20])
def test_claims_that_the_store_contradicts_are_refuted(verdicts: list[Verdict], number: int) -> None:
    assert verdicts[number - 1].verdict == "refuted", verdicts[number - 1]


@pytest.mark.parametrize("number", [5, 19, 21, 28, 32])
def test_differences_of_zero_decide_nothing(verdicts: list[Verdict], number: int) -> None:
    """The store's policies select alike, so that intervals cover 0; that is not evidence against a claim."""
    assert verdicts[number - 1].verdict == "not decided", verdicts[number - 1]


def test_effects_have_the_expected_size(verdicts: list[Verdict]) -> None:
    """GMBA's step from V = 1 to 10 is the smallest: 0.4 of 3 seconds; noise adds 0.01 / 2 to the mean."""
    effect = verdicts[3].effect
    assert effect is not None
    assert abs(effect - 0.4 / 3.005) < 0.001
    assert "GMBA V=10 below V=1" in verdicts[3].detail


def test_a_reversed_store_reverses_the_verdicts(tmp_path: Path) -> None:
    """A larger V makes the policies slower and less accurate, and the baselines are better in both."""
    verdicts = judge(
        PLAN,
        fill(
            ResultStore(tmp_path, ROUNDS),
            lambda experiment: 4.5 - speed(experiment),
            lambda experiment: 0.9 - skill(experiment),
        ),
    )
    for number in (1, 4, 6, 7, 8, 10, 11, 13, 14, 15, 16, 17, 22, 24, 26, 27, 29):
        assert verdicts[number - 1].verdict == "refuted", verdicts[number - 1]


def test_readings_are_named(tmp_path: Path) -> None:
    """With the literal bonus a larger V is slower, and only V = 100 beats the baselines."""

    def delay(experiment: Experiment) -> float:
        if experiment.reading == "literal":
            return 2.0 + speed(Experiment(experiment.task, "mamab-om:V=1")) - speed(experiment)
        return (
            speed(experiment)
            if "V=100" in experiment.policy or not experiment.policy.startswith("mamab")
            else 2 + speed(experiment)
        )

    verdicts = judge(PLAN, fill(ResultStore(tmp_path, ROUNDS), delay, None))
    assert verdicts[3].verdict == "depends on the reading", verdicts[3]
    assert "holds under the presets; refuted under the literal bonus (reading 11)" in verdicts[3].detail
    assert verdicts[25].verdict == "depends on the reading", verdicts[25]
    assert "refuted under the presets; holds under V=100 only (reading 14)" in verdicts[25].detail
    assert verdicts[0].verdict == "not computed"
    assert "learned of" in verdicts[0].detail


def test_missing_data_is_not_computed(tmp_path: Path) -> None:
    verdicts = judge(PLAN, ResultStore(tmp_path, ROUNDS))
    assert [verdict.number for verdict in verdicts] == list(range(1, 35))
    assert {verdict.verdict for verdict in verdicts} == {"not computed"}
    assert all(verdict.effect is None and verdict.detail for verdict in verdicts)


def test_one_missing_seed_leaves_a_claim_not_computed(tmp_path: Path) -> None:
    store = fill(ResultStore(tmp_path, ROUNDS))
    store._path("learned", Experiment("fashion-mnist", "random"), 1).unlink()
    verdicts = judge(PLAN, store)
    assert verdicts[0].verdict == "not computed"
    assert "1 of 3 seeds" in verdicts[0].detail
    assert verdicts[6].verdict == "holds"


def test_table_has_a_row_for_each_claim(verdicts: list[Verdict]) -> None:
    lines = table([*verdicts[:-1], replace(verdicts[-1], detail="a|b")]).splitlines()
    assert len(lines) == 2 + 34
    assert all(line.replace("\\|", "").count("|") == 7 for line in lines)
    assert [int(line.split("|")[1]) for line in lines[2:]] == list(range(1, 35))


def test_stability_is_judged_on_networks_that_can_serve_the_quotas(verdicts: list[Verdict]) -> None:
    assert "judged on the 3 of 3 networks that can serve 7/8 of the quotas with 2% to spare" in verdicts[32].detail
    assert "(the full quotas: 0)" in verdicts[32].detail
    assert "640 rounds" in verdicts[32].detail
    assert verdicts[32].cases == 6


def test_regret_has_both_benchmarks(verdicts: list[Verdict]) -> None:
    assert "T = 640" in verdicts[33].detail
    assert "under reading 15: " in verdicts[33].detail
    assert verdicts[33].cases == 6


def test_leakage_names_the_horizon_at_which_each_policy_would_match(verdicts: list[Verdict]) -> None:
    """The client with the most uploads has 21 of 40 rounds on average, so that 250 uploads take 476."""
    assert "OM V=1 476" in verdicts[11].detail
    assert long_plan(PLAN).tasks == ("fashion-mnist",)
