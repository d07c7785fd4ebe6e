"""Runs: independence of replicas, delays and queues, budgets, and results on disk."""

import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlane import Run, Scenario, Simulation, check_policy, simulate
from fedlane.intervals import interval
from fedlane.scheduling import Policy
from fedlane.simulation import results, table_parts
from fedlane.simulation.results import COLUMNS, MEASURES, RunFolder
from fedlane.validate import InputError
from support.small_runs import PAPER, UNSAMPLED, played

RIVALS = [
    *("proportional-fair", "age-of-update", "rbcs-f", "thompson", "mamab-sw:window=9,T0=1", "mamab-discounted:T0=1"),
    *("glr-cucb:delta=0.5", "clairvoyant"),
]
OTHERS = [
    "mamab-om",
    "mamab-gmba",
    "round-robin",
    "single-ucb",
    "cs-ucb-q:beta=0.01",
    "ucb-index",
    "genie",
    "lane-2026",
    "mamab-om:queue_weight=success",
    "fedcs",  # leaves channels idle if nobody fits
    *RIVALS,
]
"""All policies that require no losses, but `lane` and `random`; those that do are in test_losses.py."""


def traces(policy, seeds, rounds=60, **values):
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": rounds, **values})
    return played(scenario, policy, seeds)


@pytest.mark.parametrize("seeds", [10, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", ["lane", "random", *(pytest.param(p, marks=pytest.mark.slow) for p in OTHERS)])
def test_seed_7_alone_is_seed_7_among_others_to_the_bit(policy, seeds):
    alone, among = traces(policy, [7], rounds=40).trace, traces(policy, range(seeds), rounds=40).trace
    for name in ("client", "download_s", "compute_s", "upload_s", "delay_s", "queue", "available"):
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(among, name)[7], err_msg=name)


@pytest.mark.parametrize(
    "policy",
    [
        *("lane", "mamab-om:T0=1", "mamab-gmba:T0=1", "random", "round-robin", "single-ucb", "ucb-index", "genie"),
        *RIVALS,
    ],
)
def test_any_number_of_clients_and_channels_uses_all_of_the_fewer(policy):
    for clients, channels in ((2, 5), (4, 1), (4, 4), (1, 1), (1, 3)):
        run = traces(policy, [0, 1], 20, **{"network.clients": clients, "network.channels": channels})
        assert np.all(np.sum(run.trace.client >= 0, axis=2) == min(clients, channels)), (clients, channels)


def test_delay_clock_and_punctuality_of_a_round():
    run = simulate(PAPER, "random", rounds=50, seeds=[3, 5], learning=False)
    assignments, rounds = run.assignments.to_pydict(), run.rounds.to_pydict()
    delay = np.array(assignments["delay_s"])
    parts = sum(np.array(assignments[part]) for part in ("download_s", "compute_s", "upload_s"))
    np.testing.assert_allclose(delay, parts)
    np.testing.assert_array_equal(assignments["punctual"], delay <= 5.0)
    index = np.array(assignments["replica"]) * 50 + np.array(assignments["round"])
    slowest = np.zeros(100)
    np.maximum.at(slowest, index, np.minimum(delay, 5.0))
    np.testing.assert_allclose(rounds["delay_s"], slowest)
    np.testing.assert_allclose(rounds["clock_s"], np.cumsum(slowest.reshape(2, 50), axis=1).ravel())
    np.testing.assert_array_equal(rounds["punctual"], np.bincount(index, assignments["punctual"]))
    assert rounds["seed"] == [3] * 50 + [5] * 50
    assert any(np.array(assignments["delay_s"]) > 5.0), "a late delay is reported uncapped"


def test_participation_queues_and_uploads_from_the_assignments():
    run = simulate(PAPER, "lane", rounds=80, seeds=[1], learning=False)
    a, c = run.assignments.to_pydict(), run.clients.to_pydict()
    counts = np.bincount(a["client"], minlength=10)
    in_time = np.bincount(a["client"], a["punctual"], minlength=10)
    np.testing.assert_allclose(c["participation"], in_time / 80)
    np.testing.assert_allclose(c["selection"], counts / 80)
    np.testing.assert_array_equal(c["uploads"], counts)
    queue = np.zeros(10)
    punctual = np.zeros((80, 10))
    punctual[a["round"], a["client"]] = a["punctual"]
    for row in punctual:
        queue = np.maximum(queue + np.array(c["quota"]) - row, 0)
    np.testing.assert_allclose(c["queue"], queue, rtol=1e-5)
    np.testing.assert_allclose(c["quota"], 0.35, atol=1e-4)


def test_reported_queues_are_those_that_the_policy_would_see_next():
    run = traces("mamab-om", [0, 1], 50)
    np.testing.assert_allclose(run.trace.queue[:, -1], run.rounds.queue, rtol=1e-6)


@pytest.mark.parametrize(
    "policy",
    [
        *("lane", "mamab-om:T0=5", "mamab-gmba:T0=5", "random", "round-robin", "single-ucb", "ucb-index", "genie"),
        *RIVALS,
    ],
)
def test_clients_with_exhausted_budgets_are_not_assigned(policy):
    run = traces(policy, [0, 1], 60, **{"privacy.max_uploads": 12})
    uploads, _ = run.trace.counts()
    assert uploads.max() <= 12
    if policy != "round-robin":  # its idle channels waste rounds, not budgets
        assert np.all(uploads == 12)
    assert not run.trace.available[:, -1].any() or policy == "round-robin"
    assert run.trace.delay_s[:, -1].max() == 0 or policy == "round-robin"


def test_quotas_do_not_depend_on_the_policy_and_feasibility_is_reported():
    literal, slack = (traces(p, [0, 1, 2], 2) for p in ("mamab-om", "mamab-om:quota_slack=0.5"))
    np.testing.assert_allclose(slack.quota, literal.quota / 2)
    np.testing.assert_allclose(slack.feasible_scale, 2 * literal.feasible_scale)
    np.testing.assert_allclose(literal.quota.sum(axis=1), 4)
    hopeless = simulate(PAPER, "random", rounds=2, seeds=[38], learning=False).summary
    assert list(hopeless["infeasible_seeds"]) == ["38"]
    assert hopeless["infeasible_seeds"]["38"] == hopeless["feasible_scale"]["mean"] < 1


def test_payload_is_the_size_of_the_model():
    small, large = (traces("random", [0], 1, **{"network.payload_bits": bits}) for bits in (50_890 * 32, "model"))
    np.testing.assert_array_equal(small.trace.upload_s, large.trace.upload_s)


def test_very_large_networks_are_not_checked_for_feasibility():
    run = traces("random", [0], 1, **{"network.clients": 300, "network.channels": 100})
    assert run.feasible_scale is None
    assert run.result().summary["feasible_scale"]["mean"] is None


class Wants(Policy):
    name = "wants"
    requires = frozenset({"weather"})

    def init(self, problem):
        return {}

    def select(self, state, context, rng):
        raise NotImplementedError


class Clairvoyant(Policy):
    """Assigns the client that is fastest in this round to channel 0."""

    name = "clairvoyant"
    requires = frozenset({"channel_state"})

    def init(self, problem):
        return {"nothing": np.zeros(1)}

    def select(self, state, context, rng):
        result = np.full(len(context.available), -1)
        result[np.argmin(context.channel_state[:, 0])] = 0
        return result


def test_a_policy_that_needs_what_the_run_lacks_is_refused():
    with pytest.raises(
        InputError, match="policy wants requires 'weather', which no run supplies: choose from channel_st"
    ):
        Simulation(Scenario(), Wants(), [0])


class LargestFirst(Policy):
    """Serves the clients with the most records."""

    name = "largest-first"

    def init(self, problem):
        return {"sizes": problem.sizes.copy()}

    def select(self, state, context, rng):
        assert np.array_equal(state["sizes"], context.problem.sizes)
        rank = np.argsort(np.argsort(-np.where(context.available, context.problem.sizes, -1.0)))
        return np.where(context.available & (rank < context.problem.channels), rank, -1)


@pytest.mark.slow
def test_a_policy_sees_the_number_of_records_of_every_client():
    check_policy(LargestFirst())
    simulation = traces(LargestFirst(), [0, 1], 3, **{"data.imbalance": 0.6})
    sizes = simulation.setup.problem.sizes
    np.testing.assert_array_equal(sizes, simulation.setup.label_counts.sum(axis=2))
    assert sizes.shape == (2, 10)
    for r in range(2):
        served = set(simulation.trace.client[r].ravel().tolist())
        assert sizes[r, list(served)].min() >= np.sort(sizes[r])[-4]


def test_channel_state_is_supplied_to_a_policy_that_requires_it():
    best, random = (traces(p, [0, 1], 40) for p in (Clairvoyant(), "random"))
    chosen = np.nanmean(best.trace.total_s[:, :, 0])
    assert chosen < 0.4 * np.nanmean(random.trace.total_s[:, :, 0])


@pytest.mark.parametrize(
    ("seeds", "message"), [([], "at least one"), ([1, 1], "all different"), ([-1], "seed must be at least 0")]
)
def test_bad_seeds(seeds, message):
    with pytest.raises(InputError, match=message):
        Simulation(Scenario(), "random", seeds)


def test_interval():
    assert interval(np.array([3.0])) == {"mean": 3.0, "low": None, "high": None}
    assert interval(None)["mean"] is None
    result = interval(np.array([1.0, 2.0, 3.0, 4.0]))  # t(3, 97.5%) = 3.18245, s / 2 = 0.645497
    assert result["mean"] == 2.5
    assert result["high"] - 2.5 == pytest.approx(3.18245 * 0.645497, rel=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    run = simulate(UNSAMPLED, "mamab-om:V=10", rounds=12, seeds=[0, 1], learning=False)
    run.save(folder)
    return run, folder


def copied(folder, target):
    return shutil.copytree(folder, target)


def test_a_run_folder_has_the_documented_files_and_columns(saved):
    run, folder = saved
    for name, columns in COLUMNS.items():
        written = pq.read_table(folder / f"{name}.parquet").column_names
        extra = {
            "client_rounds": ["epsilon_paper", "present"],
            "assignments": ["energy_j"],
            "clients": ["present_share", "shortfall", "energy_j"],
        }.get(name, [])
        assert [column for column in written if column not in extra] == list(columns)
        assert set(extra) <= set(written)
    status = json.loads((folder / "status.json").read_text())
    assert status == {"round": 12, "rounds": 12, "state": "finished"}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["policy"] == "mamab-om:V=10"
    assert summary["seeds"] == [0, 1]
    assert summary["rounds"] == 12
    for measure in MEASURES:
        assert set(summary[measure]) == {"mean", "low", "high"}
    assert summary["cumulative_delay_s"]["mean"] == pytest.approx(np.sum(run.rounds["delay_s"].to_numpy()) / 2)
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []
    resolved = Scenario.load(folder / "scenario.toml")
    assert resolved.policies["mamab-om"]["V"] == 10
    assert resolved.policies["mamab-om"]["T0"] == 100


def test_save_and_load_give_the_same_run(saved):
    run, folder = saved
    again = Run.load(folder)
    assert again.scenario == run.scenario
    assert dict(again.summary) == json.loads(json.dumps(run.summary))
    for name in COLUMNS:
        assert again.tables[name].equals(run.tables[name])


def test_a_saved_scenario_gives_the_same_results(saved):
    run, folder = saved
    again = simulate(Scenario.load(folder / "scenario.toml"), "mamab-om", seeds=[0, 1], learning=False)
    assert again.assignments.equals(run.assignments)


@pytest.mark.parametrize("name", ["summary.json", "rounds.parquet", "scenario.toml", "status.json", "channels.parquet"])
def test_a_folder_without_one_of_the_files_is_refused(saved, tmp_path, name):
    folder = copied(saved[1], tmp_path / "b")
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"is not a run folder: {name} is missing"):
        Run.load(folder)


@pytest.mark.parametrize("name", [f"{table}.parquet" for table in COLUMNS])
@pytest.mark.parametrize("damage", ["cut", "garbage", "flip"])
def test_a_damaged_table_is_refused(saved, tmp_path, name, damage):
    path = copied(saved[1], tmp_path / "b") / name
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "garbage":
        data = bytearray(os.urandom(200))
    else:
        data[40] ^= 0xFF  # inside the first page
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{name} is damaged"):
        Run.load(path.parent)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"cumulative_delay_s": 3}'])
def test_a_damaged_summary_is_refused(saved, tmp_path, text):
    folder = copied(saved[1], tmp_path / "b")
    (folder / "summary.json").write_text(text)
    with pytest.raises(InputError, match=r"summary\.json is damaged"):
        Run.load(folder)


def test_a_foreign_table_and_a_missing_folder_are_refused(saved, tmp_path):
    import pyarrow as pa

    folder = copied(saved[1], tmp_path / "b")
    pq.write_table(pa.table({"x": [1]}), folder / "clients.parquet")
    with pytest.raises(InputError, match=r"clients\.parquet was not written by FedLane: column replica is missing"):
        Run.load(folder)
    with pytest.raises(InputError, match="does not exist"):
        Run.load(tmp_path / "nowhere")


def test_a_non_empty_folder_is_refused_and_left_alone(saved, tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        saved[0].save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(saved, tmp_path, monkeypatch):
    """The disk is full when the third file is written."""
    written = []

    def full(tables, name, folder):
        written.append(name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        table_parts.write_table(tables, name, folder)

    monkeypatch.setattr(results, "write_table", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        saved[0].save(tmp_path / "new")
    assert len(written) == 3
    assert not (tmp_path / "new").exists()


def test_a_failed_rewrite_keeps_the_last_good_state(saved, tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "new")
    folder.write(saved[0])

    def full(tables, name, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "write_table", full)
    with pytest.raises(InputError, match="No space left"):
        folder.write(saved[0])
    assert Run.load(tmp_path / "new").rounds.equals(saved[0].rounds)
    assert [p.name for p in (tmp_path / "new").iterdir() if p.name.startswith(".")] == []
