"""Privacy in whole runs: what is spent, what is shown, and what happens when a budget ends."""

import json

import numpy as np
import pytest

from fedlane import Run, Scenario, simulate
from fedlane.cli.session import Session
from fedlane.privacy import account
from fedlane.privacy.paper import formula_6, leakage_lower_bound, paper_noise
from fedlane.privacy.run_ledger import NAME, read_run_accounts
from fedlane.report.terminal import notes
from fedlane.simulation.run import Simulation
from fedlane.simulation.setup import prepare
from fedlane.validate import InputError

QUIET = Session(quiet=True)
POLICIES = ("lane", "mamab-om:T0=5", "mamab-gmba:T0=5", "random", "round-robin", "single-ucb", "genie")


def scenario(**changes):
    """A small rigorous run: 200 records a client of the embedded data."""
    values = {
        "network.clients": 10,
        "learning.batch_size": 16,
        "learning.local_iterations": 2,
        "privacy.mechanism": "rigorous",
        "privacy.epsilon": 6.0,
        "privacy.delta": 1e-5,
        "privacy.max_uploads": 12,
        "rounds": 40,
    }
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return Scenario.load("quickstart").with_values({**values, **changes})


@pytest.mark.parametrize("policy", POLICIES)
def test_budgets_that_end_in_mid_run_break_no_policy(policy):
    """With learning: fewer clients than channels remain, then none; nobody spends more than was agreed."""
    run = simulate(scenario(), policy, seeds=[0, 1])
    clients, rounds = run.clients.to_pydict(), run.client_rounds.to_pydict()
    assert max(clients["uploads"]) == 12
    assert max(clients["epsilon"]) <= 6.0
    assert run.summary["privacy"]["exhausted"] == sum(count == 12 for count in clients["uploads"]) > 0
    available = np.array(rounds["available"]).reshape(2, 40, 10)
    assert available[:, 0].all()
    if policy != "round-robin":
        assert not available[:, -1].any()
        assert run.rounds["delay_s"].to_numpy().reshape(2, 40)[:, -1].max() == 0  # nobody is asked any more
    learned = run.rounds["accuracy"].to_numpy().reshape(2, 40)[:, -1]
    assert learned.min() > 0.15
    assert any("budgets are exhausted" in note for note in notes(run.summary))


def test_the_schedule_is_the_same_without_learning():
    with_, without = (simulate(scenario(), "lane", seeds=[3], learning=learning) for learning in (True, False))
    assert with_.assignments.equals(without.assignments)
    assert with_.clients.equals(without.clients)
    assert with_.client_rounds.equals(without.client_rounds)


def test_epsilons_are_dp_accounting_s_for_the_uploads_that_were_made():
    run = simulate(scenario(privacy__max_uploads=40), "lane", seeds=[2], learning=False)
    clients, setup = run.clients.to_pydict(), prepare(run.scenario, [2])
    z = setup.mechanism.step_noise[0, 0]
    one = account(z, 16 / 800, 2, 1e-5)
    shown = zip(clients["uploads"], clients["epsilon"], clients["epsilon_paper"], strict=True)
    for uploads, epsilon, by_formula in set(shown):
        exact = account(z, 16 / 800, 2 * uploads, 1e-5, histogram_noise=10.0)
        assert exact - 1e-9 <= epsilon <= exact * 1.002
        assert by_formula == pytest.approx(float(formula_6(one, 1e-5, uploads)), rel=1e-3)
    rounds = np.array(run.client_rounds["epsilon"]).reshape(40, 10)
    assert np.all(np.diff(rounds, axis=0) >= 0)
    np.testing.assert_array_equal(rounds[-1], clients["epsilon"])
    by_formula = np.array(run.client_rounds["epsilon_paper"]).reshape(40, 10)
    np.testing.assert_array_equal(by_formula[-1], clients["epsilon_paper"])
    made = np.zeros((40, 10), int)
    made[run.assignments["round"].to_numpy(), run.assignments["client"].to_numpy()] = 1
    steps_up = np.diff(rounds, axis=0) > 0
    np.testing.assert_array_equal(np.diff(by_formula, axis=0) > 0, made[1:] > 0)
    np.testing.assert_array_equal(steps_up, made[1:] > 0)  # every upload costs, late ones too; nothing else does


def test_the_paper_s_mechanism_shows_its_formula_and_what_it_leaks():
    run = simulate("paper-fmnist", "random", rounds=30, seeds=[0], learning=False)
    clients = run.clients.to_pydict()
    noise = float(paper_noise(25.0, 1e-3, 6000, 64, 5))
    for uploads, epsilon, by_formula in zip(
        clients["uploads"], clients["epsilon"], clients["epsilon_paper"], strict=True
    ):
        assert by_formula == pytest.approx(float(formula_6(25.0, 1e-3, uploads)))
        assert by_formula < 0.8 * leakage_lower_bound(noise, 64 / 6000, 5, 1e-3, uploads) < epsilon
        assert epsilon <= leakage_lower_bound(noise, 64 / 6000, 5, 1e-3, uploads)
    (warning,) = [note for note in notes(run.summary) if "leaks" in note]
    assert "the paper's formula gives" in warning
    assert run.summary["privacy"]["epsilon_composed"] > run.summary["privacy"]["epsilon_paper"]


def test_without_a_mechanism_nothing_is_accounted():
    run = simulate(scenario(privacy__mechanism="none", rounds=5), "lane", learning=False)
    assert run.clients["epsilon"].null_count == run.clients["epsilon_paper"].null_count == 10
    assert run.client_rounds["epsilon"].null_count == 50
    assert run.summary["privacy"] is None
    assert run.ledger == ""
    longer = simulate(scenario(privacy__mechanism="none"), "lane", learning=False)
    assert max(longer.clients["uploads"].to_pylist()) > 12  # no budget, so none is exhausted


def test_the_ledger_is_saved_and_holds_every_upload(tmp_path):
    run = simulate(scenario(rounds=8), "lane", seeds=[0, 5], learning=False)
    run.save(tmp_path / "run")
    accounts = read_run_accounts(tmp_path / "run" / NAME)
    np.testing.assert_array_equal(accounts.uploads.ravel(), run.clients["uploads"].to_numpy())
    assert accounts.seeds == (0, 5)
    assert Run.load(tmp_path / "run").ledger == run.ledger
    assert "seeded" in json.loads(run.ledger.splitlines()[0])["randomness"]
    assert "seeded" in run.summary["privacy"]["randomness"]


def test_a_run_resumed_after_a_crash_charges_nothing_twice(tmp_path):
    """The ledger ran ahead of the checkpoint: the rounds that are played again are the same uploads."""
    from fedlane.simulation.results import RunFolder

    whole = Simulation(scenario(rounds=12), "lane", [4])
    folder = RunFolder.create(tmp_path / "run")
    for _ in range(5):
        whole.step()
    folder.write(whole.result(), checkpoint=whole.checkpoint())
    whole.ledger.attach_file(folder.path)
    for _ in range(4):
        whole.step()  # charged, then lost
    assert len((folder.path / NAME).read_text().splitlines()) == 10
    again = Simulation.resume(folder.path)
    again.ledger.attach_file(folder.path)
    again.play()
    unbroken = simulate(scenario(rounds=12), "lane", seeds=[4], learning=False)
    assert (folder.path / NAME).read_text() == unbroken.ledger
    np.testing.assert_array_equal(read_run_accounts(folder.path / NAME).uploads, again._uploads)


def test_quotas_come_from_the_noised_histogram():
    """Released shares differ from the raw ones, by the seed; without noise for the release they are raw."""
    noisy, other, raw = (
        prepare(scenario(privacy__histogram_noise=noise), [seed]).problem.quotas[0]
        for noise, seed in ((40.0, 0), (40.0, 1), (0.0, 0))
    )
    assert np.ptp(raw) < 1e-9  # equal sizes, one dominant class each: equal quotas
    assert np.ptp(noisy) > 1e-3
    assert not np.allclose(noisy, other)
    assert noisy.sum() == pytest.approx(4.0)


def test_less_private_clients_have_larger_quotas_under_rigorous_noise():
    """Theta's noise term follows the mechanism's own noise."""
    epsilon = [2.0] * 5 + [20.0] * 5
    setup = prepare(
        scenario(
            privacy__epsilon=epsilon,
            privacy__histogram_noise=0.0,
            privacy__theta_noise="sqrt_d",
            privacy__least_noise=0.1,
        ),
        [0],
    )
    assert setup.mechanism.step_noise[0, 0] > setup.mechanism.step_noise[0, 9]
    quotas = setup.problem.quotas[0]
    assert quotas[:5].max() < quotas[5:].min()


def test_noise_below_the_bound_is_refused_and_can_be_allowed():
    wild = scenario(privacy__epsilon=60.0, privacy__max_uploads=5)
    with pytest.raises(InputError, match=r"privacy\.least_noise 0\.5"):
        prepare(wild, [0])
    assert prepare(wild.with_values({"privacy.least_noise": 0.1}), [0]).mechanism.step_noise.max() < 0.5


def test_a_schedule_carries_the_mechanism(tmp_path):
    """Saved, read back and learned from elsewhere: the same model as in the run itself."""
    from fedlane.learning.replay import Schedule, learn

    simulation = Simulation(scenario(rounds=6), "lane", [1], learning=True)
    simulation.play()
    simulation.schedule().save(tmp_path / "s.npz")
    loaded = Schedule.load(tmp_path / "s.npz")
    assert loaded.task.mechanism.sampling == "poisson"
    curves = learn(loaded)
    np.testing.assert_array_equal(curves.weights, simulation.federation.weights.numpy())


@pytest.mark.parametrize("mechanism", ["paper", "rigorous"])
def test_each_replica_is_its_own(mechanism):
    """Uneven sizes, so that rates are rounded: seed 7 alone and among others."""
    settings = {"privacy__mechanism": mechanism, "data__imbalance": 0.4, "rounds": 10, "privacy__epsilon": 4.0}
    among = simulate(scenario(**settings), "lane", seeds=[1, 7, 3], learning=False)
    alone = simulate(scenario(**settings), "lane", seeds=[7], learning=False)
    mine = among.clients.filter(among.clients["replica"].to_numpy() == 1)
    for column in ("quota", "uploads", "epsilon", "epsilon_paper"):
        assert mine[column].to_pylist() == alone.clients[column].to_pylist()


def test_a_run_that_cannot_be_resumed_keeps_its_ledger(tmp_path):
    from fedlane.simulation.results import RunFolder

    simulate(scenario(rounds=4), "lane", learning=False).save(tmp_path / "run")
    before = (tmp_path / "run" / NAME).read_text()
    with pytest.raises(InputError, match="the run is finished"):
        QUIET.play("resuming", lambda: Simulation.resume(tmp_path / "run"), RunFolder(tmp_path / "run"))
    assert (tmp_path / "run" / NAME).read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:2], lines[2].replace("[[", "[", 1), *lines[3:]],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [*lines, "garbage\n"],
        lambda lines: [lines[0], "{}\n"],
    ],
)
def test_a_ledger_that_was_changed_stops_the_resumed_run(tmp_path, change):
    """Before a round is played, and whether or not it is longer than the checkpoint."""
    from fedlane.simulation.results import RunFolder

    whole = Simulation(scenario(rounds=12), "lane", [4])
    folder = RunFolder.create(tmp_path / "run")
    for _ in range(5):
        whole.step()
    folder.write(whole.result(), checkpoint=whole.checkpoint())
    whole.ledger.attach_file(folder.path)
    whole.step()
    file = folder.path / NAME
    changed = "".join(change(file.read_text().splitlines(keepends=True)))
    file.write_text(changed)
    with pytest.raises(InputError, match=r"is damaged|holds other uploads"):
        QUIET.play("resuming", lambda: Simulation.resume(folder.path), RunFolder(folder.path))
    assert file.read_text() == changed


def test_many_sizes_under_the_paper_s_mechanism_are_few_curves_and_stay_lower_bounds():
    run = Simulation(scenario(privacy__mechanism="paper", data__imbalance=0.5, rounds=8), "random", range(6))
    run.play()
    assert len(run.spending.terms) < 35 < 60  # of 60 clients
    clients, spec = run.result().clients.to_pydict(), run.setup.mechanism
    for replica, client, uploads, epsilon in list(
        zip(clients["replica"], clients["client"], clients["uploads"], clients["epsilon"], strict=True)
    )[:20]:
        at = replica, client
        exact = leakage_lower_bound(spec.upload_noise[at], spec.sample_rate[at], 2, 1e-5, uploads)
        assert epsilon <= exact * (1 + 1e-9)
