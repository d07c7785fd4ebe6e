"""Cells of the paper's evaluation: what is stored is what a fresh run gives, and nothing is computed twice."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.experiments import reproduce as paper
from fedlane.experiments import store as cells_module
from fedlane.experiments.reproduce import FIGURES, PaperFigure, ReproductionPlan, chosen, export_pieces, import_pieces
from fedlane.experiments.store import SETTINGS, Experiment, ResultStore, batches
from fedlane.learning import replay
from fedlane.learning.datasets import Samples
from fedlane.learning.replay import Schedule, learn
from fedlane.validate import InputError

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


def fresh(cell, seed, rounds=ROUNDS, learning=False):
    return simulate(cell.scenario(rounds), cell.policy, seeds=[seed], learning=learning)


def by_channel(run, channels):
    """(T, N): who used each channel and who was punctual, from a run's table of assignments."""
    client, punctual = np.full((len(run.rounds), channels), -1), np.zeros((len(run.rounds), channels), bool)
    for row in run.assignments.to_pylist():
        client[row["round"], row["channel"]] = row["client"]
        punctual[row["round"], row["channel"]] = row["punctual"]
    return client, punctual


def learned_runs(store, wanted):
    """Schedule and learn, all in one batch."""
    for cell, seed in wanted:
        store.schedule(cell, [seed])
    store.learn(wanted)


def plan_of(*cells, seeds=2):
    figure = PaperFigure(tuple(cells), tuple(cells))
    return ReproductionPlan({"some": figure}, seeds, seeds, tuple(dict.fromkeys(cell.task for cell in cells)))


class TestSchedules:
    @pytest.mark.parametrize(
        "cell",
        [
            LANE,
            QUIET,
            Experiment("fashion-mnist", "mamab-gmba:V=1", "nonuniform", "literal"),
            Experiment("cifar10", "round-robin", "deadline-0.5"),
            Experiment("fashion-mnist", "random", "channels-6"),
        ],
        ids=lambda cell: cell.name,
    )
    def test_a_stored_schedule_is_what_a_fresh_run_of_that_seed_gives(self, store, cell):
        store.schedule(cell, [0, 3, 5])
        run, kept = fresh(cell, 3), store.result(cell, 3)
        client, punctual = by_channel(run, cell.scenario().network.channels)
        np.testing.assert_array_equal(kept.client, client)
        np.testing.assert_array_equal(kept.punctual, punctual)
        np.testing.assert_array_equal(kept.delay_s, run.rounds["delay_s"].to_numpy())
        np.testing.assert_array_equal(kept.queue.ravel(), run.client_rounds["queue"].to_numpy())
        np.testing.assert_array_equal(kept.quota, run.clients["quota"].to_numpy())
        np.testing.assert_allclose(kept.share(), run.clients["participation"].to_numpy())
        np.testing.assert_allclose(kept.share("assigned"), run.clients["selection"].to_numpy())
        assert kept.learned is None

    def test_what_is_there_is_not_computed_again(self, store, monkeypatch):
        store.schedule(LANE, range(3))
        assert store.missing("schedule", LANE, range(4)) == [3]

        def refuse(*arguments, **named):
            raise AssertionError("computed twice")

        monkeypatch.setattr(cells_module, "Simulation", refuse)
        store.schedule(LANE, range(3))
        with pytest.raises(AssertionError, match="computed twice"):
            store.schedule(LANE, range(4))

    def test_a_killed_run_goes_on_with_what_is_missing(self, store, monkeypatch):
        store.schedule(LANE, range(3))
        before = store.result(LANE, 1)
        (gone,) = store.folder.glob("schedule-*/*/seed-1.npz")
        gone.unlink()
        asked = []
        real = cells_module.Simulation

        def counted(scenario, policy, seeds):
            asked.append(list(seeds))
            return real(scenario, policy, seeds)

        monkeypatch.setattr(cells_module, "Simulation", counted)
        store.schedule(LANE, range(3))
        assert asked == [[1]]
        for name in ("client", "punctual", "delay_s", "queue", "quota"):
            np.testing.assert_array_equal(getattr(store.result(LANE, 1), name), getattr(before, name))

    def test_rounds_and_cells_do_not_share_files(self, store):
        store.schedule(LANE, [0])
        assert ResultStore(store.folder, rounds=ROUNDS + 1).missing("schedule", LANE, [0]) == [0]
        assert store.missing("schedule", RANDOM, [0]) == [0]

    @pytest.mark.parametrize("damage", ["empty", "text", "half", "other"])
    def test_a_damaged_file_is_an_error_that_names_it(self, store, damage):
        store.schedule(LANE, [0])
        (file,) = store.folder.glob("schedule-*/*/seed-0.npz")
        whole = file.read_bytes()
        if damage == "other":
            np.save(file.with_suffix(".npy"), np.zeros(3))
            whole = file.with_suffix(".npy").read_bytes()
        file.write_bytes({"empty": b"", "text": b"not an archive", "half": whole[: len(whole) // 2]}.get(damage, whole))
        with pytest.raises(InputError, match=r"seed-0\.npz is damaged"):
            store.result(LANE, 0)

    def test_flipped_bytes_are_an_error_wherever_they_are(self, store):
        store.schedule(LANE, [0])
        (file,) = store.folder.glob("schedule-*/*/seed-0.npz")
        whole, expected = file.read_bytes(), store.result(LANE, 0)
        refused = 0
        for at in range(0, len(whole), len(whole) // 150):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                kept = store.result(LANE, 0)
            except InputError:
                refused += 1
            else:  # in a time stamp, say
                np.testing.assert_array_equal(kept.client, expected.client)
                np.testing.assert_array_equal(kept.delay_s, expected.delay_s)
        assert refused > 75


class TestBatches:
    def test_groups_share_learning_settings_and_keep_to_the_limit(self):
        kinds = [
            LANE,
            RANDOM,
            QUIET,
            Experiment("fashion-mnist", "lane", "private"),
            Experiment("fashion-mnist", "lane", "tau-1"),
        ]
        kinds += [Experiment("fashion-mnist", "lane", "channels-2"), Experiment("fashion-mnist", "lane", "clients-6")]
        kinds += [Experiment("cifar10", "lane")]
        wanted = [(cell, seed) for seed in range(5) for cell in kinds]
        groups = batches(wanted, 6)
        assert sorted(map(repr, wanted)) == sorted(repr(pair) for group in groups for pair in group)
        assert max(map(len, groups)) == 6
        for group in groups:
            settings = {(cell.task, cell.scenario().learning, cell.scenario().network.clients) for cell, _ in group}
            assert len(settings) == 1
        together = next(group for group in groups if (LANE, 0) in group)
        assert {cell for cell, _ in together} == {LANE, RANDOM, QUIET}  # noise may differ from replica to replica
        assert len(groups) == 3 + 5

    def test_nothing_wanted_is_no_batch(self):
        assert batches([], 5) == []


@full_data
class TestLearning:
    def test_cells_learned_in_one_batch_learn_what_they_would_alone(self, store, fashion_mnist):
        wanted = [(LANE, 0), (QUIET, 2)]
        assert batches(wanted, 10) == [wanted]
        learned_runs(store, wanted)
        for cell, seed in wanted:
            run, learned = fresh(cell, seed, learning=True), store.result(cell, seed).learned
            accuracy = run.rounds["accuracy"].to_numpy()
            assert learned.round.tolist() == [9, 11] == np.flatnonzero(~np.isnan(accuracy)).tolist()
            np.testing.assert_allclose(learned.accuracy[0], accuracy[[9, 11]], atol=0.002)
            # With the other replica's noise the loss would differ by 5e-4.
            np.testing.assert_allclose(learned.loss[0], run.rounds["loss"].to_numpy()[[9, 11]], rtol=1e-4)
            np.testing.assert_allclose(learned.clock_s[0], run.rounds["clock_s"].to_numpy()[[9, 11]])
        assert abs(np.diff([store.result(cell, seed).learned.accuracy[0, 1] for cell, seed in wanted])) > 0.002

    def test_a_plan_learns_only_what_is_missing(self, store, fashion_mnist, tmp_path):
        plan = plan_of(LANE, RANDOM)
        done = []
        paper.compute_schedules(plan, store, done.append)
        assert done == [LANE.name, RANDOM.name]
        assert plan.to_schedule(store) == []
        (piece,) = plan.to_learn(store)
        assert piece == [(LANE, 0), (LANE, 1), (RANDOM, 0), (RANDOM, 1)]
        store.learn([(LANE, 1)])
        (piece,) = plan.to_learn(store)
        assert piece == [(LANE, 0), (RANDOM, 0), (RANDOM, 1)]
        store.learn(piece)
        assert plan.to_learn(store) == []
        assert export_pieces(plan, store, tmp_path / "nothing") == 0


@pytest.fixture
def small_test_set(cifar10, monkeypatch):
    """CIFAR-10 with a test set of 500 images: testing is what takes the time."""
    few = Samples(cifar10.test.images[:500], cifar10.test.labels[:500])
    monkeypatch.setattr(replay, "load_dataset", lambda name: dataclasses.replace(cifar10, test=few))


@pytest.mark.slow
@pytest.mark.xdist_group("cifar10")  # unpacked once
@pytest.mark.parametrize(("policy", "setting"), [("random", "tau-1"), ("mamab-om:V=100", "private")])
def test_a_cell_of_cifar10_learns_what_a_fresh_run_does(tmp_path, small_test_set, policy, setting):
    store, cell = ResultStore(tmp_path, rounds=2), Experiment("cifar10", policy, setting)
    learned_runs(store, [(cell, 1)])
    run, learned = fresh(cell, 1, rounds=2, learning=True), store.result(cell, 1).learned
    np.testing.assert_allclose(learned.accuracy, [[run.summary["final_accuracy"]["mean"]]], atol=0.002)
    np.testing.assert_allclose(learned.loss[0, 0], run.rounds["loss"].to_numpy()[-1], rtol=1e-4)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory, fashion_mnist):
    """A store with schedules alone, and its two pieces, learned."""
    folder = tmp_path_factory.mktemp("pieces")
    store, plan = ResultStore(folder / "store", rounds=ROUNDS), plan_of(LANE, RANDOM)
    paper.compute_schedules(plan, store, lambda name: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(paper.AT_ONCE, "fashion-mnist", 3)
        assert export_pieces(plan, store, folder / "pieces") == 2
    for number in (0, 1):
        curves = learn(Schedule.load(folder / "pieces" / f"piece-0{number}.npz"))
        arrays = {k: v for k, v in dataclasses.asdict(curves).items() if k != "weights"}
        np.savez_compressed(folder / "pieces" / f"curves-0{number}.npz", allow_pickle=False, **arrays)
    return folder


@pytest.fixture
def copied(pieces, tmp_path):
    """Pieces and store that a test may spoil."""
    shutil.copytree(pieces, tmp_path / "copy")
    return ResultStore(tmp_path / "copy" / "store", rounds=ROUNDS), tmp_path / "copy" / "pieces"


@full_data
class TestPieces:
    """Learning elsewhere: export, `fedlane.learning.replay`, import."""

    def test_import_gives_what_learning_here_gives(self, copied):
        store, folder = copied
        assert import_pieces(store, folder) == 2
        wanted = [(cell, seed) for cell in (LANE, RANDOM) for seed in (0, 1)]
        taken = [store.result(cell, seed).learned for cell, seed in wanted]
        assert plan_of(LANE, RANDOM).to_learn(store) == []
        store.learn(wanted)
        for (cell, seed), there in zip(wanted, taken, strict=True):
            here = store.result(cell, seed).learned
            np.testing.assert_array_equal(there.round, here.round)
            np.testing.assert_array_equal(there.clock_s, here.clock_s)
            np.testing.assert_allclose(there.accuracy, here.accuracy, atol=0.002)
            np.testing.assert_allclose(there.loss, here.loss, rtol=1e-4)

    def test_a_folder_without_curves_is_refused(self, store, tmp_path):
        with pytest.raises(InputError, match=r"holds no curves-\*\.npz"):
            import_pieces(store, tmp_path)

    def test_curves_of_another_piece_or_length_are_refused(self, copied):
        store, folder = copied
        (folder / "curves-00.npz").replace(folder / "curves-01.npz")  # three replicas where there was one
        with pytest.raises(InputError, match=r"curves-01\.npz does not fit piece-01\.json"):
            import_pieces(store, folder)
        with pytest.raises(InputError, match=r"does not fit"):
            import_pieces(ResultStore(store.folder, rounds=ROUNDS + 1), folder)
        assert len(plan_of(LANE, RANDOM).to_learn(store)) == 1

    def test_curves_without_their_list_are_refused(self, copied):
        store, folder = copied
        (folder / "piece-00.json").unlink()
        with pytest.raises(InputError, match=r"curves-00\.npz cannot be taken in"):
            import_pieces(store, folder)

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_curves_that_are_half_written_are_refused(self, copied, share):
        """As a lease that ended leaves them: `replay` opens its output before the work."""
        store, folder = copied
        whole = (folder / "curves-00.npz").read_bytes()
        (folder / "curves-00.npz").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match=r"curves-00\.npz"):
            import_pieces(store, folder)

    def test_curves_of_an_earlier_export_are_not_taken_for_another_cell_s(self, copied):
        """Pieces are numbered anew at each export: the same number and size may be other cells'."""
        store, folder = copied
        listed = json.loads((folder / "piece-01.json").read_text())
        listed["rows"] = [{**row, "policy": "lane", "seed": 0} for row in listed["rows"]]
        (folder / "piece-01.json").write_text(json.dumps(listed))
        with pytest.raises(InputError):
            import_pieces(store, folder)


class TestFigures:
    def test_every_cell_of_every_figure_loads_and_has_its_own_name(self):
        cells = {cell for figure in FIGURES.values() for cell in (*figure.scheduled, *figure.learned)}
        assert len({cell.name for cell in cells}) == len(cells)
        for figure in FIGURES.values():
            assert set(figure.learned) <= set(figure.scheduled)
        for cell in {dataclasses.replace(cell, policy="any") for cell in cells}:
            scenario = cell.scenario()
            assert scenario.rounds == 500
            assert scenario.data.dataset == cell.task

    def test_settings_say_what_they_change(self):
        base = Scenario.load("paper-fmnist")
        for name in SETTINGS:
            scenario = Experiment("fashion-mnist", "lane", name).scenario()
            assert (scenario == base) == (name == "base"), name
        half = Experiment("fashion-mnist", "lane", "deadline-0.5").scenario()
        assert half.network.deadline_s == base.network.deadline_s / 2
        literal = Experiment("fashion-mnist", "lane", reading="literal").scenario()
        assert literal.policies["mamab-om"]["exploration"] == 1.0

    def test_a_mistyped_figure_is_told_the_nearest(self):
        with pytest.raises(InputError, match=r"unknown figure 'fig-vv' .*'fig-v'"):
            chosen(["fig-vv"])
        assert list(chosen([])) == list(FIGURES)
        assert list(chosen(["fig-delay", "fig-v"])) == ["fig-v", "fig-delay"]

    def test_a_plan_takes_many_seeds_where_they_are_cheap(self):
        plan = ReproductionPlan(FIGURES, 100, 10)
        assert plan.seeds(LANE) == range(100)
        assert plan.seeds(Experiment("fashion-mnist", "lane", "clients-40")) == range(10)
        assert len(plan.scheduled()) == len(set(plan.scheduled()))
        only = ReproductionPlan(FIGURES, 100, 10, ("cifar10",))
        assert {cell.task for cell in (*only.scheduled(), *only.learned())} == {"cifar10"}
