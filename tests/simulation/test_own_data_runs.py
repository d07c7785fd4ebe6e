"""Runs on data sets of one's own: training, natural clients, and what replays, resumed runs and sweeps notice."""

import json
import tomllib
import zipfile

import numpy as np
import pytest

from fedlane import Scenario, Simulation, simulate
from fedlane.experiments.engine.cells import Cell
from fedlane.learning.partition import chosen_clients
from fedlane.learning.schedule import Schedule, learn
from fedlane.simulation.results import RunFolder
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError
from support.terminal import fedlane

VALUES = {
    "rounds": 12,
    "network": {"clients": 4, "channels": 2},
    "data": {"dataset": "my.npz"},
    "learning": {"model": "softmax", "learning_rate": 0.5, "batch_size": 8, "evaluate_every": 4},
}
PRIVATE = {"mechanism": "paper", "epsilon": 25.0, "delta": 1e-3}
NATURAL = {"data.partition": "natural"}


def clusters(n, shift=0.0):
    """Three classes of vectors that a linear model separates."""
    rng, labels = np.random.default_rng(n), np.arange(n) % 3
    return (np.eye(3)[labels] * 5 + rng.normal(size=(n, 3)) + shift).astype(np.float32), labels


def save(folder, shift=0.0, clients=6):
    """Write a data set whose client k has 10 (k + 1) samples."""
    ids = np.repeat([f"phone {k}" for k in range(clients)], [10 * (k + 1) for k in range(clients)])
    (x, y), (x_test, y_test) = clusters(len(ids), shift), clusters(60)
    np.savez(folder / "my.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, client_train=ids)
    return y, ids


@pytest.fixture
def scenario(here):
    save(here)
    return Scenario.from_values(VALUES)


@pytest.mark.parametrize("changes", [{}, pytest.param({"privacy": PRIVATE}, marks=pytest.mark.slow), NATURAL])
def test_a_data_set_of_ones_own_trains(scenario, changes):
    run = simulate(scenario.with_values(changes), "random", seeds=[0, 1])
    assert run.summary["final_accuracy"]["mean"] > 0.9


def test_any_partition_divides_it(scenario):
    for partition in ("dominant", "dirichlet", "shards", "iid"):
        counts = prepare(scenario.with_values({"data.partition": partition}), [0]).label_counts
        np.testing.assert_array_equal(counts.sum(axis=(0, 1)), [70, 70, 70])


def test_natural_clients_keep_their_samples(here, scenario):
    y, ids = save(here)
    seeds = [0, 1, 2]
    simulation = Simulation(scenario.with_values(NATURAL), "random", seeds, learning=True)
    counts, data = simulation.setup.label_counts, simulation.federation.data
    for replica, seed in enumerate(seeds):
        chosen = chosen_clients(6, 4, seed)
        np.testing.assert_array_equal(counts[replica].sum(axis=1), 10 * (chosen + 1))
        for client, natural in enumerate(chosen):
            first, size = int(data.start[replica, client]), int(data.size[replica, client])
            members = data.order[replica, first : first + size].numpy()
            np.testing.assert_array_equal(ids[members], f"phone {natural}")
            assert len(set(members.tolist())) == 10 * (natural + 1)
            np.testing.assert_array_equal(np.bincount(y[members], minlength=3), counts[replica, client])
    assert len({tuple(chosen_clients(6, 4, seed)) for seed in range(20)}) > 5
    np.testing.assert_array_equal(prepare(scenario.with_values(NATURAL), [1]).label_counts[0], counts[1])
    everyone = prepare(scenario.with_values({**NATURAL, "network.clients": 6}), [0]).label_counts
    np.testing.assert_array_equal(everyone[0].sum(axis=1), [10, 20, 30, 40, 50, 60])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.clients": 7}, "network.clients must be at most 6, the number of clients in the data set, got 7"),
        ({"data.imbalance": 0.5}, "takes clients as they are: omit samples_per_client and imbalance"),
        ({"data.samples_per_client": 5}, "takes clients as they are: omit samples_per_client and imbalance"),
        ({"data.dataset": "fashion-mnist-mini"}, "needs a data set with clients"),
        ({"learning.model": "cnn"}, "model cnn needs images"),
    ],
)
def test_what_does_not_fit_natural_clients_is_refused_in_one_line(scenario, changes, message):
    with pytest.raises(InputError, match=message):
        prepare(scenario.with_values({**NATURAL, **changes}), [0])


def test_a_saved_schedule_trains_the_same_clients_and_notices_changed_data(here, scenario):
    simulation = Simulation(scenario.with_values(NATURAL), "random", [3], learning=True)
    simulation.play()
    simulation.schedule().save(here / "schedule.npz")
    schedule = Schedule.load(here / "schedule.npz")
    np.testing.assert_allclose(learn(schedule).weights, simulation.federation.weights.numpy(), atol=1e-5)
    save(here, shift=0.5)
    with pytest.raises(InputError, match=r"data.dataset 'my.npz' has changed since the schedule was made"):
        learn(schedule)


def test_a_schedule_of_a_function_does_not_call_it_when_it_is_opened(here, scenario):
    simulation = Simulation(scenario, "random", [0])
    simulation.step()
    simulation.schedule().save(here / "schedule.npz")
    with np.load(here / "schedule.npz") as stored:
        arrays = dict(stored)
    np.savez(here / "other.npz", **{**arrays, "task.dataset": np.array("no_such_module:load")})
    assert Schedule.load(here / "other.npz").task.dataset == "no_such_module:load"


def test_a_run_folder_records_the_data_and_replay_notices_a_change(here, scenario):
    (here / "my.toml").write_text(scenario.to_toml())
    fedlane("run", "my.toml", "--policy", "random", "--quiet", "--out", "run", cwd=here, code=0)
    recorded = json.loads((here / "run" / "provenance.json").read_text())["sessions"][0]["data"]
    assert recorded["dataset"] == "my.npz"
    assert len(recorded["sha256"]) == 64
    fedlane("replay", "run", "--quiet", cwd=here, code=0)
    save(here, shift=0.01)
    result = fedlane("replay", "run", "--quiet", cwd=here, code=2)
    assert "run cannot be replayed: its data set 'my.npz' has changed since it was recorded" in result.stderr


def test_a_resumed_run_notices_changed_data(here, scenario):
    simulation = Simulation(scenario, "random", [0], learning=True)
    simulation.play(until=6)
    RunFolder.create(here / "run").write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    assert Simulation.resume(here / "run").round == 6
    save(here, shift=0.01)
    with pytest.raises(InputError, match=r"cannot be resumed: its data set 'my.npz' has changed"):
        Simulation.resume(here / "run")


def test_the_key_of_a_cell_follows_the_data(here, scenario):
    def key():
        return Cell(scenario, "random", (0,), learning=False).batches()[0].key

    before = key()
    assert key() == before
    save(here, shift=0.01)
    assert key() != before


@pytest.mark.slow
def test_accounts_of_a_run_are_checked_without_calling_its_function(here, scenario):
    (here / "my_data.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n"
        "def load():\n"
        "    Path('called').write_text(Path('called').read_text() + 'x' if Path('called').exists() else 'x')\n"
        "    with np.load('my.npz') as stored:\n        return dict(stored)\n"
    )
    changes = {"privacy": PRIVATE, "data.dataset": "my_data:load"}
    simulation = Simulation(scenario.with_values(changes), "random", [0])
    simulation.play()
    simulation.result().save(here / "run")
    called = (here / "called").read_text()
    fedlane("privacy", "account", "run", cwd=here, code=0)
    assert (here / "called").read_text() == called


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no.npz", "data.dataset 'no.npz' does not exist"),
        ("no_such_module:load", "cannot be loaded: No module named 'no_such_module'"),
        ("fashon-mnist", "(did you mean 'fashion-mnist'?)"),
        ("5", "data.dataset must be"),
    ],
)
def test_the_command_line_refuses_a_wrong_data_set_in_one_line(here, value, message):
    result = fedlane("run", "--set", f"data.dataset={value}", "--quiet", cwd=here, code=2)
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("mechanism", ["none", pytest.param("rigorous", marks=pytest.mark.slow)])
def test_own_data_natural_clients_optimisers_and_a_world_work_together(here, mechanism):
    """One run with all of them is trained, resumed and replayed, and its saved schedule learns the same model."""
    save(here)
    settings = "model='softmax', learning_rate=0.3, batch_size=8, evaluate_every=5, momentum=0.5, proximal=0.1"
    server = "server_optimizer='adam', server_learning_rate=0.3, aggregation='unbiased'"
    learning = tomllib.loads(f"learning = {{ {settings}, {server} }}")["learning"]
    changes = {
        "rounds": 15,
        "network.clients": 5,
        "network.channels": 2,
        "data": {"dataset": "my.npz", "partition": "natural"},
        "privacy.mechanism": mechanism,
        "privacy.max_uploads": 15,
        **{f"learning.{name}": value for name, value in learning.items()},
    }
    scenario = Scenario.load("phones").with_values(changes)
    simulation = Simulation(scenario, "lane", [0, 1], learning=True)
    simulation.play(until=6)
    RunFolder.create(here / "run").write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    resumed = Simulation.resume(here / "run")
    for part in (simulation, resumed):
        part.play()
    assert resumed.result().rounds.equals(simulation.result().rounds)
    accuracy = simulation.result().summary["final_accuracy"]["mean"]
    assert accuracy > (0.9 if mechanism == "none" else 0.4)
    simulation.schedule().save(here / "schedule.npz")
    learned = learn(Schedule.load(here / "schedule.npz"))
    np.testing.assert_allclose(learned.weights, simulation.federation.weights.numpy(), atol=1e-5)
    simulation.result().save(here / "whole")
    fedlane("replay", "whole", "--quiet", cwd=here, code=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "note"),
    [("my.npz", "put it at the same path where you rebuild"), ("my_packed_data:load", "files that it reads are not")],
)
def test_an_artifact_states_that_own_data_is_not_packed(here, scenario, dataset, note):
    (here / "my_packed_data.py").write_text(
        "import numpy as np\n\n\ndef load():\n    with np.load('my.npz') as stored:\n        return dict(stored)\n"
    )
    run = simulate(scenario.with_values({"data.dataset": dataset}), "random", rounds=2, seeds=[0], learning=False)
    run.save(here / "run")
    result = fedlane("artifact", "run", "--out", "a.zip", cwd=here, code=0)
    digest = run.provenance["sessions"][0]["data"]["sha256"]
    assert f"the data of {dataset} is not packed (SHA-256 of its arrays: {digest}): {note}" in " ".join(
        result.stderr.split()
    )
    with zipfile.ZipFile(here / "a.zip") as archive:
        names, readme = archive.namelist(), archive.read("artifact/README.md").decode()
    assert digest in readme
    assert ("artifact/code/my_packed_data.py" in names) == (":" in dataset)
    assert not any(name.endswith(".npz") for name in names)
