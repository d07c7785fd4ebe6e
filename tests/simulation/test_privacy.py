"""Privacy in whole runs: accounting, notes, ledgers, and budgets that run out."""

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
from support.small_runs import played

QUIET = Session(quiet=True)
POLICIES = ("lane", "mamab-om:T0=5", "mamab-gmba:T0=5", "random", "round-robin", "single-ucb", "ucb-index", "genie")

SAMPLED = {"learning__batch_size": 16}
REPORTED = ("uploads", "epsilon", "epsilon_paper")


def scenario(**changes):
    """A small run with the mechanism `rigorous` on the embedded data, with all records in every sample."""
    values = {
        "network.clients": 10,
        "learning.batch_size": 800,
        "learning.local_iterations": 2,
        "privacy.mechanism": "rigorous",
        "privacy.epsilon": 6.0,
        "privacy.delta": 1e-5,
        "privacy.max_uploads": 12,
        "rounds": 40,
    }
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return Scenario.load("quickstart").with_values({**values, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_handle_budgets_that_run_out(policy):
    """Fewer clients than channels remain, then none, and no client spends more than it agreed to."""
    run = simulate(scenario(**SAMPLED), policy, seeds=[0, 1])
    clients, rounds = run.clients.to_pydict(), run.client_rounds.to_pydict()
    assert max(clients["uploads"]) == 12
    assert max(clients["epsilon"]) <= 6.0
    assert run.summary["privacy"]["exhausted"] == sum(count == 12 for count in clients["uploads"]) > 0
    available = np.array(rounds["available"]).reshape(2, 40, 10)
    assert available[:, 0].all()
    if policy != "round-robin":
        assert not available[:, -1].any()
        assert run.rounds["delay_s"].to_numpy().reshape(2, 40)[:, -1].max() == 0  # no client is assigned any more
    learned = run.rounds["accuracy"].to_numpy().reshape(2, 40)[:, -1]
    assert learned.min() > 0.15
    assert any("budgets are exhausted" in note for note in notes(run.summary))


@pytest.mark.slow
def test_the_schedule_is_the_same_without_learning():
    with_, without = (simulate(scenario(**SAMPLED), "lane", seeds=[3], learning=learning) for learning in (True, False))
    assert with_.assignments.equals(without.assignments)
    assert with_.clients.equals(without.clients)
    assert with_.client_rounds.equals(without.client_rounds)


@pytest.mark.slow
def test_epsilons_agree_with_dp_accounting():
    rounds_played = 12
    run = simulate(scenario(rounds=rounds_played, **SAMPLED), "lane", seeds=[2], learning=False)
    clients, setup = run.clients.to_pydict(), prepare(run.scenario, [2])
    z = setup.mechanism.step_noise[0, 0]
    for uploads, epsilon in set(zip(clients["uploads"], clients["epsilon"], strict=True)):
        exact = account(z, 16 / 800, 2 * uploads, 1e-5, histogram_noise=10.0)
        assert exact - 1e-9 <= epsilon <= exact * 1.002
    rounds = np.array(run.client_rounds["epsilon"]).reshape(rounds_played, 10)
    assert np.all(np.diff(rounds, axis=0) >= 0)
    np.testing.assert_array_equal(rounds[-1], clients["epsilon"])
    uploaded = np.zeros((rounds_played, 10), bool)
    uploaded[run.assignments["round"].to_numpy(), run.assignments["client"].to_numpy()] = True
    # every upload is charged, late ones included, and nothing else
    np.testing.assert_array_equal(np.diff(rounds, axis=0) > 0, uploaded[1:])


@pytest.mark.slow
def test_the_paper_mechanism_reports_its_formula_and_its_leakage():
    paper = Scenario.load("paper-fmnist").with_values({"privacy.max_uploads": 10, "rounds": 10})
    run = simulate(paper, "random", seeds=[0], learning=False)
    noise = float(paper_noise(25.0, 1e-3, 6000, 64, 5))
    reported = {tuple(row) for row in zip(*(run.clients[name].to_pylist() for name in REPORTED), strict=True)}
    assert len(reported) > 2
    for uploads, epsilon, by_formula in reported:
        exact = leakage_lower_bound(noise, 64 / 6000, 5, 1e-3, uploads)
        assert by_formula == pytest.approx(float(formula_6(25.0, 1e-3, uploads)))
        assert by_formula < 0.8 * exact < epsilon
        # The run computes all counts together, so the last digits depend on the processor's instructions.
        assert epsilon <= exact * (1 + 1e-9)
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
    assert max(longer.clients["uploads"].to_pylist()) > 12  # there is no budget to exhaust


def test_the_saved_ledger_holds_every_upload(tmp_path):
    run = simulate(scenario(rounds=8), "lane", seeds=[0, 5], learning=False)
    run.save(tmp_path / "run")
    accounts = read_run_accounts(tmp_path / "run" / NAME)
    np.testing.assert_array_equal(accounts.uploads.ravel(), run.clients["uploads"].to_numpy())
    assert accounts.seeds == (0, 5)
    assert Run.load(tmp_path / "run").ledger == run.ledger
    assert "seeded" in json.loads(run.ledger.splitlines()[0])["randomness"]
    assert "seeded" in run.summary["privacy"]["randomness"]


def test_a_run_resumed_after_a_crash_charges_nothing_twice(tmp_path):
    """The ledger is ahead of the checkpoint: rounds that are played again are the same uploads."""
    from fedlane.simulation.results import RunFolder

    whole = Simulation(scenario(rounds=12), "lane", [4])
    folder = RunFolder.create(tmp_path / "run")
    for _ in range(5):
        whole.step()
    folder.write(whole.result(), checkpoint=whole.checkpoint())
    whole.ledger.attach_file(folder.path)
    for _ in range(4):
        whole.step()  # charged, but lost with the crash
    assert len((folder.path / NAME).read_text().splitlines()) == 10
    again = Simulation.resume(folder.path)
    again.ledger.attach_file(folder.path)
    again.play()
    uninterrupted = simulate(scenario(rounds=12), "lane", seeds=[4], learning=False)
    assert (folder.path / NAME).read_text() == uninterrupted.ledger
    np.testing.assert_array_equal(read_run_accounts(folder.path / NAME).uploads, again.uploads)


def test_quotas_come_from_the_noised_histogram():
    """The released label shares depend on the seed; without noise they are the true ones."""
    noisy, other, raw = (
        prepare(scenario(privacy__histogram_noise=noise), [seed]).problem.quotas[0]
        for noise, seed in ((40.0, 0), (40.0, 1), (0.0, 0))
    )
    assert np.ptp(raw) < 1e-9  # equal sizes, one dominant class each: equal quotas
    assert np.ptp(noisy) > 1e-3
    assert not np.allclose(noisy, other)
    assert noisy.sum() == pytest.approx(4.0)


def test_less_private_clients_have_larger_quotas_under_rigorous_noise():
    """The noise term of theta is the mechanism's noise, which has a closed form if every sample has all records."""
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


def test_too_little_noise_is_refused_unless_it_is_allowed():
    wild = scenario(privacy__epsilon=60.0, privacy__max_uploads=5)
    with pytest.raises(InputError, match=r"privacy\.least_noise 0\.5"):
        prepare(wild, [0])
    assert prepare(wild.with_values({"privacy.least_noise": 0.1}), [0]).mechanism.step_noise.max() < 0.5


@pytest.mark.slow
def test_a_schedule_carries_the_mechanism(tmp_path):
    """Learning from a saved schedule gives the same model as the run."""
    from fedlane.learning.replay import Schedule, learn

    simulation = Simulation(scenario(rounds=6, **SAMPLED), "lane", [1], learning=True)
    simulation.play()
    simulation.schedule().save(tmp_path / "s.npz")
    loaded = Schedule.load(tmp_path / "s.npz")
    assert loaded.task.mechanism.sampling == "poisson"
    curves = learn(loaded)
    np.testing.assert_allclose(curves.weights, simulation.federation.weights.numpy(), rtol=1e-5, atol=1e-6)  # float32


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["paper", "rigorous"])
def test_accounting_of_a_replica_depends_on_its_own_seed_only(mechanism):
    """The clients' data sizes differ, so that sample rates are rounded."""
    settings = {"privacy__mechanism": mechanism, "privacy__max_uploads": 4, "data__imbalance": 0.4, "rounds": 6}
    # Every client's noise is calibrated, which is quick for large samples and a small epsilon.
    settings |= {"network__clients": 5, "learning__batch_size": 400, "privacy__epsilon": 1.0}
    among = simulate(scenario(**settings), "lane", seeds=[1, 7], learning=False)
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
def test_a_run_with_a_changed_ledger_is_not_resumed(tmp_path, change):
    """The run stops before its first round, whether or not the ledger is ahead of the checkpoint."""
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
    with pytest.raises(InputError, match=r"is damaged|does not match the run's checkpoint"):
        QUIET.play("resuming", lambda: Simulation.resume(folder.path), RunFolder(folder.path))
    assert file.read_text() == changed


@pytest.mark.slow
def test_rounding_many_data_sizes_to_few_curves_keeps_lower_bounds():
    settings = {"privacy__mechanism": "paper", "data__imbalance": 0.5, "rounds": 6, "privacy__max_uploads": 4}
    run = played(scenario(**SAMPLED, **settings), "random", range(6))
    assert len(run.spending.terms) < 35  # for 60 clients
    clients, spec = run.result().clients.to_pydict(), run.setup.mechanism
    for replica, client, uploads, epsilon in list(
        zip(clients["replica"], clients["client"], clients["uploads"], clients["epsilon"], strict=True)
    )[:8]:
        at = replica, client
        exact = leakage_lower_bound(spec.upload_noise[at], spec.sample_rate[at], 2, 1e-5, uploads)
        assert epsilon <= exact * (1 + 1e-9)
