"""The store of the paper's evaluation: stored results equal those of a fresh run, and nothing is computed twice."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.experiments import reproduce
from fedlane.experiments import store as store_module
from fedlane.experiments.engine.local_runners import InProcessRunner, ProcessRunner
from fedlane.experiments.pieces import export_pieces, import_pieces
from fedlane.experiments.reproduce import FIGURES, PaperFigure, ReproductionPlan, select_figures
from fedlane.experiments.store import SETTINGS, Experiment, ResultStore, batches
from fedlane.learning import schedule
from fedlane.learning.datasets import Samples
from fedlane.learning.schedule import Schedule, learn
from fedlane.validate import InputError
from support.refusals import refused

ROUNDS = 12
LANE, RANDOM, QUIET = (
    Experiment("fashion-mnist", "lane"),
    Experiment("fashion-mnist", "random"),
    Experiment("fashion-mnist", "mamab-om:V=10", "epsilon-0.8"),
)
full_data = pytest.mark.xdist_group("full-fashion-mnist")


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "store", rounds=ROUNDS)


def fresh(experiment, seed, rounds=ROUNDS, learning=False):
    return simulate(experiment.scenario(rounds), experiment.policy, seeds=[seed], learning=learning)


def by_channel(run, channels):
    """(T, N) each: client of each channel and whether it was punctual, from a run's table of assignments."""
    client, punctual = np.full((len(run.rounds), channels), -1), np.zeros((len(run.rounds), channels), bool)
    for row in run.assignments.to_pylist():
        client[row["round"], row["channel"]] = row["client"]
        punctual[row["round"], row["channel"]] = row["punctual"]
    return client, punctual


def learned_runs(store, wanted):
    """Schedule experiments and learn from them in one batch."""
    for experiment, seed in wanted:
        store.schedule(experiment, [seed])
    store.learn(wanted)


def plan_of(*experiments, seeds=2):
    figure = PaperFigure(tuple(experiments), tuple(experiments))
    return ReproductionPlan(
        {"some": figure}, seeds, seeds, tuple(dict.fromkeys(experiment.task for experiment in experiments))
    )


class TestSchedules:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "experiment",
        [
            LANE,
            QUIET,
            Experiment("fashion-mnist", "mamab-gmba:V=1", "nonuniform", "literal"),
            Experiment("cifar10", "round-robin", "deadline-0.5"),
            Experiment("fashion-mnist", "random", "channels-6"),
        ],
        ids=lambda experiment: experiment.name,
    )
    def test_a_stored_schedule_equals_a_fresh_run_of_that_seed(self, store, experiment):
        store.schedule(experiment, [0, 3, 5])
        run, stored = fresh(experiment, 3), store.result(experiment, 3)
        client, punctual = by_channel(run, experiment.scenario().network.channels)
        np.testing.assert_array_equal(stored.client, client)
        np.testing.assert_array_equal(stored.punctual, punctual)
        np.testing.assert_array_equal(stored.delay_s, run.rounds["delay_s"].to_numpy())
        np.testing.assert_array_equal(stored.queue.ravel(), run.client_rounds["queue"].to_numpy())
        np.testing.assert_array_equal(stored.quota, run.clients["quota"].to_numpy())
        np.testing.assert_allclose(stored.share(), run.clients["participation"].to_numpy())
        np.testing.assert_allclose(stored.share("assigned"), run.clients["selection"].to_numpy())
        assert stored.learned is None

    def test_existing_results_are_not_computed_again(self, store, monkeypatch):
        store.schedule(LANE, range(3))
        assert store.missing("schedule", LANE, range(4)) == [3]

        def refuse(*arguments, **named):
            raise AssertionError("computed twice")

        monkeypatch.setattr(store_module, "Simulation", refuse)
        store.schedule(LANE, range(3))
        with pytest.raises(AssertionError, match="computed twice"):
            store.schedule(LANE, range(4))

    def test_a_killed_run_continues_with_the_missing_seeds(self, store, monkeypatch):
        store.schedule(LANE, range(3))
        before = store.result(LANE, 1)
        (removed,) = store.folder.glob("schedule-*/*/seed-1.npz")
        removed.unlink()
        computed = []
        real = store_module.Simulation

        def counted(scenario, policy, seeds):
            computed.append(list(seeds))
            return real(scenario, policy, seeds)

        monkeypatch.setattr(store_module, "Simulation", counted)
        store.schedule(LANE, range(3))
        assert computed == [[1]]
        for name in ("client", "punctual", "delay_s", "queue", "quota"):
            np.testing.assert_array_equal(getattr(store.result(LANE, 1), name), getattr(before, name))

    def test_rounds_and_experiments_do_not_share_files(self, store):
        store.schedule(LANE, [0])
        assert ResultStore(store.folder, rounds=ROUNDS + 1).missing("schedule", LANE, [0]) == [0]
        assert store.missing("schedule", RANDOM, [0]) == [0]

    @pytest.mark.parametrize("damage", ["empty", "text", "half", "other"])
    def test_the_error_for_a_damaged_file_names_it(self, store, damage):
        store.schedule(LANE, [0])
        (file,) = store.folder.glob("schedule-*/*/seed-0.npz")
        whole = file.read_bytes()
        if damage == "other":
            np.save(file.with_suffix(".npy"), np.zeros(3))
            whole = file.with_suffix(".npy").read_bytes()
        file.write_bytes({"empty": b"", "text": b"not an archive", "half": whole[: len(whole) // 2]}.get(damage, whole))
        with pytest.raises(InputError, match=r"seed-0\.npz is damaged"):
            store.result(LANE, 0)

    def test_flipped_bytes_are_an_error_or_harmless(self, store):
        store.schedule(LANE, [0])
        (file,) = store.folder.glob("schedule-*/*/seed-0.npz")
        whole, expected = file.read_bytes(), store.result(LANE, 0)
        refused = 0
        for at in range(0, len(whole), len(whole) // 150):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                stored = store.result(LANE, 0)
            except InputError:
                refused += 1
            else:  # for example in a time stamp
                np.testing.assert_array_equal(stored.client, expected.client)
                np.testing.assert_array_equal(stored.delay_s, expected.delay_s)
        assert refused > 75


class TestBatches:
    def test_groups_share_learning_settings_and_respect_the_limit(self):
        kinds = [
            LANE,
            RANDOM,
            QUIET,
            Experiment("fashion-mnist", "lane", "private"),
            Experiment("fashion-mnist", "lane", "tau-1"),
        ]
        kinds += [Experiment("fashion-mnist", "lane", "channels-2"), Experiment("fashion-mnist", "lane", "clients-6")]
        kinds += [Experiment("cifar10", "lane")]
        wanted = [(experiment, seed) for seed in range(5) for experiment in kinds]
        groups = batches(wanted, 6)
        assert sorted(map(repr, wanted)) == sorted(repr(pair) for group in groups for pair in group)
        assert max(map(len, groups)) == 6
        for group in groups:
            settings = {
                (experiment.task, experiment.scenario().learning, experiment.scenario().network.clients)
                for experiment, _ in group
            }
            assert len(settings) == 1
        together = next(group for group in groups if (LANE, 0) in group)
        assert {experiment for experiment, _ in together} == {
            LANE,
            RANDOM,
            QUIET,
        }  # the noise may differ between replicas
        assert len(groups) == 3 + 5

    def test_no_experiments_make_no_batch(self):
        assert batches([], 5) == []


@full_data
class TestLearning:
    def test_learning_in_one_batch_equals_learning_alone(self, store, fashion_mnist):
        wanted = [(LANE, 0), (QUIET, 2)]
        assert batches(wanted, 10) == [wanted]
        learned_runs(store, wanted)
        for experiment, seed in wanted:
            run, learned = fresh(experiment, seed, learning=True), store.result(experiment, seed).learned
            accuracy = run.rounds["accuracy"].to_numpy()
            assert learned.round.tolist() == [9, 11] == np.flatnonzero(~np.isnan(accuracy)).tolist()
            np.testing.assert_allclose(learned.accuracy[0], accuracy[[9, 11]], atol=0.002)
            # With the other replica's noise, the loss would differ by 5e-4.
            np.testing.assert_allclose(learned.loss[0], run.rounds["loss"].to_numpy()[[9, 11]], rtol=1e-4)
            np.testing.assert_allclose(learned.clock_s[0], run.rounds["clock_s"].to_numpy()[[9, 11]])
        assert (
            abs(np.diff([store.result(experiment, seed).learned.accuracy[0, 1] for experiment, seed in wanted])) > 0.002
        )

    def test_a_plan_learns_the_pieces_with_something_missing(self, store, fashion_mnist, tmp_path):
        plan = plan_of(LANE, RANDOM)
        finished = []
        reproduce.compute_schedules(plan, store, finished.append)
        assert finished == [LANE.name, RANDOM.name]
        assert plan.to_schedule(store) == []
        (piece,) = plan.to_learn(store)
        assert piece == [(LANE, 0), (RANDOM, 0), (LANE, 1), (RANDOM, 1)]
        store.learn([(LANE, 1)])
        assert plan.to_learn(store) == [piece]  # whatever is stored, the piece is the same
        store.learn(piece)
        assert plan.to_learn(store) == []
        assert export_pieces(plan, store, tmp_path / "nothing") == 0


class TestPlannedPieces:
    def test_further_seeds_and_figures_leave_full_pieces_as_they_are(self, monkeypatch):
        monkeypatch.setattr(reproduce, "PIECE_REPLICAS", {"fashion-mnist": 4, "cifar10": 4})
        few, more = plan_of(LANE, RANDOM, seeds=3), plan_of(LANE, RANDOM, seeds=4)
        assert [len(piece) for piece in few.pieces()] == [4, 2]
        assert more.pieces()[0] == few.pieces()[0]
        two = dataclasses.replace(few, figures={**few.figures, "next": PaperFigure((), (RANDOM, QUIET))})
        assert two.pieces()[:2] == few.pieces()
        assert two.pieces()[2:] == [[(QUIET, 0), (QUIET, 1), (QUIET, 2)]]

    def test_every_experiment_of_the_paper_is_in_one_piece(self):
        plan = ReproductionPlan(FIGURES, 1, 2)
        rows = [row for piece in plan.pieces() for row in piece]
        assert len({*rows}) == len(rows) == 2 * len(plan.learned())


@full_data
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: a process with threads
def test_workers_schedule_and_learn_what_this_process_does(tmp_path, fashion_mnist, forked_workers):
    plan, stores = plan_of(LANE, RANDOM), [ResultStore(tmp_path / name, rounds=ROUNDS) for name in ("here", "workers")]
    finished, learned = [], []
    for store, runner in zip(stores, (None, ProcessRunner(2)), strict=True):
        reproduce.compute_schedules(plan, store, finished.append, runner)
    reproduce.learn_pieces(plan, stores[0], "cpu", InProcessRunner(), learned.append)
    reproduce.learn_pieces(plan, stores[1], "cpu", ProcessRunner(2), learned.append)
    assert (sorted(finished), learned) == (sorted(2 * [LANE.name, RANDOM.name]), [4, 4])
    for experiment in (LANE, RANDOM):
        for seed in (0, 1):
            here, there = (store.result(experiment, seed) for store in stores)
            for name in ("client", "punctual", "delay_s", "queue", "quota"):
                np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
            for name in ("round", "clock_s", "accuracy", "loss"):
                np.testing.assert_array_equal(getattr(here.learned, name), getattr(there.learned, name))
    assert plan.to_learn(stores[1]) == []


def test_a_failed_schedule_is_one_line(store):
    plan = plan_of(dataclasses.replace(LANE, policy="lane:V=-1"))
    with pytest.raises(InputError, match="policy lane: V must be at least 0"):
        reproduce.compute_schedules(plan, store, print)


@pytest.fixture
def small_test_set(cifar10, monkeypatch):
    """CIFAR-10 with a test set of 500 images, because testing takes most of the time."""
    few = Samples(cifar10.test.images[:500], cifar10.test.labels[:500])
    monkeypatch.setattr(schedule, "load_dataset", lambda name: dataclasses.replace(cifar10, test=few))


@pytest.mark.long
@pytest.mark.xdist_group("cifar10")  # unpacked once
@pytest.mark.parametrize(("policy", "setting"), [("random", "tau-1"), ("mamab-om:V=100", "private")])
def test_an_experiment_on_cifar10_learns_the_same_as_a_fresh_run(tmp_path, small_test_set, policy, setting):
    store, experiment = ResultStore(tmp_path, rounds=2), Experiment("cifar10", policy, setting)
    learned_runs(store, [(experiment, 1)])
    run, learned = fresh(experiment, 1, rounds=2, learning=True), store.result(experiment, 1).learned
    np.testing.assert_allclose(learned.accuracy, [[run.summary["final_accuracy"]["mean"]]], atol=0.002)
    np.testing.assert_allclose(learned.loss[0, 0], run.rounds["loss"].to_numpy()[-1], rtol=1e-4)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory, fashion_mnist):
    """A store with schedules only, and its two pieces with their curves."""
    folder = tmp_path_factory.mktemp("pieces")
    store, plan = ResultStore(folder / "store", rounds=ROUNDS), plan_of(LANE, RANDOM)
    reproduce.compute_schedules(plan, store, lambda name: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reproduce.PIECE_REPLICAS, "fashion-mnist", 3)
        assert export_pieces(plan, store, folder / "pieces") == 2
    for number in (0, 1):
        curves = learn(Schedule.load(folder / "pieces" / f"piece-0{number}.npz"))
        arrays = {k: v for k, v in dataclasses.asdict(curves).items() if k != "weights"}
        np.savez_compressed(folder / "pieces" / f"curves-0{number}.npz", allow_pickle=False, **arrays)
    return folder


@pytest.fixture
def copied(pieces, tmp_path):
    """A copy of the store and the pieces, which a test may damage."""
    shutil.copytree(pieces, tmp_path / "copy")
    return ResultStore(tmp_path / "copy" / "store", rounds=ROUNDS), tmp_path / "copy" / "pieces"


@full_data
class TestPieces:
    """Learning on another machine: export, `fedlane.learning.replay`, import."""

    def test_imported_curves_equal_those_learned_here(self, copied):
        store, folder = copied
        assert import_pieces(store, folder) == 2
        wanted = [(experiment, seed) for experiment in (LANE, RANDOM) for seed in (0, 1)]
        imported_curves = [store.result(experiment, seed).learned for experiment, seed in wanted]
        assert plan_of(LANE, RANDOM).to_learn(store) == []
        store.learn(wanted)
        for (experiment, seed), imported in zip(wanted, imported_curves, strict=True):
            learned = store.result(experiment, seed).learned
            np.testing.assert_array_equal(imported.round, learned.round)
            np.testing.assert_array_equal(imported.clock_s, learned.clock_s)
            np.testing.assert_allclose(imported.accuracy, learned.accuracy, atol=0.002)
            np.testing.assert_allclose(imported.loss, learned.loss, rtol=1e-4)

    def test_a_folder_without_curves_is_refused(self, store, tmp_path):
        with pytest.raises(InputError, match=r"contains no curves-\*\.npz"):
            import_pieces(store, tmp_path)

    def test_curves_of_another_piece_or_length_are_refused(self, copied):
        store, folder = copied
        (folder / "curves-00.npz").replace(folder / "curves-01.npz")  # three replicas instead of one
        with pytest.raises(InputError, match=r"curves-01\.npz cannot be imported: clock_s must have the shape"):
            import_pieces(store, folder)
        (folder / "curves-01.npz").replace(folder / "curves-00.npz")
        with pytest.raises(InputError, match=r"curves-00\.npz (does not match|cannot be imported)"):
            import_pieces(ResultStore(store.folder, rounds=ROUNDS + 1), folder)
        assert len(plan_of(LANE, RANDOM).to_learn(store)) == 1

    def test_curves_without_their_list_are_refused(self, copied):
        store, folder = copied
        (folder / "piece-00.json").unlink()
        with pytest.raises(InputError, match=r"curves-00\.npz cannot be imported"):
            import_pieces(store, folder)

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_incomplete_curves_are_refused(self, copied, share):
        """An interrupted `replay` leaves such files: it opens its output before it starts to learn."""
        store, folder = copied
        whole = (folder / "curves-00.npz").read_bytes()
        (folder / "curves-00.npz").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match=r"curves-00\.npz"):
            import_pieces(store, folder)

    def test_curves_of_an_earlier_export_are_refused(self, copied):
        """Each export numbers its pieces from 0: another export may use the same number for other experiments."""
        store, folder = copied
        piece = json.loads((folder / "piece-01.json").read_text())
        piece["rows"] = [{**row, "policy": "lane", "seed": 0} for row in piece["rows"]]
        (folder / "piece-01.json").write_text(json.dumps(piece))
        with pytest.raises(InputError):
            import_pieces(store, folder)


class TestFigures:
    def test_every_experiment_loads_and_has_a_unique_name(self):
        experiments = {experiment for figure in FIGURES.values() for experiment in (*figure.scheduled, *figure.learned)}
        assert len({experiment.name for experiment in experiments}) == len(experiments)
        for figure in FIGURES.values():
            assert set(figure.learned) <= set(figure.scheduled)
        for experiment in {dataclasses.replace(experiment, policy="any") for experiment in experiments}:
            scenario = experiment.scenario()
            assert scenario.rounds == 500
            assert scenario.data.dataset == experiment.task

    def test_every_setting_changes_the_scenario(self):
        base = Scenario.load("paper-fmnist")
        for name in SETTINGS:
            scenario = Experiment("fashion-mnist", "lane", name).scenario()
            assert (scenario == base) == (name == "base"), name
        half = Experiment("fashion-mnist", "lane", "deadline-0.5").scenario()
        assert half.network.deadline_s == base.network.deadline_s / 2
        literal = Experiment("fashion-mnist", "lane", reading="literal").scenario()
        assert literal.policies["mamab-om"]["exploration"] == 1.0

    def test_a_mistyped_figure_name_suggests_the_nearest(self):
        with pytest.raises(InputError, match=r"unknown figure 'fig-vv' .*'fig-v'"):
            select_figures(["fig-vv"])
        assert list(select_figures(list(FIGURES)[::-1])) == list(FIGURES)
        assert list(select_figures(["fig-delay", "fig-v"])) == ["fig-v", "fig-delay"]

    def test_a_plan_uses_fewer_seeds_for_costly_settings(self):
        plan = ReproductionPlan(FIGURES, 100, 10)
        assert plan.seeds(LANE) == range(100)
        assert plan.seeds(Experiment("fashion-mnist", "lane", "clients-40")) == range(10)
        assert len(plan.scheduled()) == len(set(plan.scheduled()))
        only = ReproductionPlan(FIGURES, 100, 10, ("cifar10",))
        assert {experiment.task for experiment in (*only.scheduled(), *only.learned())} == {"cifar10"}


WRONG_ARRAYS = (
    np.zeros(0),
    np.array(1.5),
    np.array(["a", "b"]),
    np.array([[np.nan, np.nan]]),
    np.array([-1, -2]),
    np.array([10**9, 10**9]),
    np.array([0.5, 1.5]),
    np.array([True, False]),
    np.zeros((1, 1, 2)),
    np.array([[1j, 1j]]),
    np.array([("a", 1)], dtype=[("x", "U1"), ("y", "i4")]),
    np.array(["2020-01-01", "2020-01-02"], "M8[s]"),
)


def test_a_changed_store_is_one_line(store):
    store.schedule(RANDOM, [0])
    good = store.read("schedule", RANDOM, 0)
    for name, wrong in [(key, array) for key in good for array in (None, *WRONG_ARRAYS, good[key][:-1])]:
        arrays = {key: array for key, array in good.items() if key != name}
        store.write("schedule", RANDOM, 0, arrays if wrong is None else {**arrays, name: wrong})
        assert refused(store.result, RANDOM, 0), (name, wrong)
    for number in (-2, 10**6):
        store.write("schedule", RANDOM, 0, {**good, "client": np.full_like(good["client"], number)})
        assert refused(store.result, RANDOM, 0)
    store.write("schedule", RANDOM, 0, {**good, "learned": np.zeros(3)})
    refused(store.result, RANDOM, 0)


def test_a_changed_import_is_one_line(store, tmp_path):
    store.schedule(RANDOM, [0])
    clock = np.cumsum(store.result(RANDOM, 0).delay_s)
    tested = np.array([5, 11])
    ones = np.ones((1, 2))
    good = {"round": tested, "clock_s": clock[tested][None], "accuracy": ones / 2, "loss": ones}
    row = {**dataclasses.asdict(RANDOM), "seed": 0}
    folder = tmp_path / "pieces"
    folder.mkdir()

    def imported(piece, arrays):
        (folder / "piece-00.json").write_text(json.dumps(piece))
        np.savez(folder / "curves-00.npz", **arrays)
        return refused(import_pieces, store, folder)

    assert not imported({"rounds": ROUNDS, "rows": [row]}, good)
    odd = (None, -1, 2**70, 1e308, "x", "../../../x", [], {}, [1], "a" * 500)
    for key in (*row, "extra"):
        for value in odd:
            changed = {"rounds": ROUNDS, "rows": [{**row, key: value}]}
            assert imported(changed, good) or key == "seed", (key, value)
    for key in ("rounds", "rows"):
        for value in odd:
            imported({"rounds": ROUNDS, "rows": [row], key: value}, good)
    for name, wrong in [(name, wrong) for name in good for wrong in (None, *WRONG_ARRAYS)]:
        arrays = {key: array for key, array in good.items() if key != name}
        imported({"rounds": ROUNDS, "rows": [row]}, arrays if wrong is None else {**arrays, name: wrong})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pieces", "store"]
