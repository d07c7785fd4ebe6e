"""Mean rewards against a slow simulation, regret against hand-computed values, and the panels drawn from them."""

import numpy as np
import pytest

from fedlane.experiments import regret_and_timing
from fedlane.experiments.regret_and_timing import (
    assignment_of,
    complexity_panels,
    exponent,
    mean_rewards,
    promised_regret,
    regret_panels,
)
from fedlane.experiments.reproduce import ReproductionPlan, compute_schedules, select_figures
from fedlane.experiments.store import Experiment, Result, ResultStore
from fedlane.report.paper_figures import draw
from fedlane.simulation.setup import prepare
from fedlane.theory import Bound

SMALL = Experiment("fashion-mnist", "lane", "clients-6")


def a_result(client, clients, queue=0.0):
    client = np.asarray(client)
    rounds = len(client)
    return Result(
        client=client,
        punctual=client >= 0,
        delay_s=np.ones(rounds),
        queue=np.full((rounds, clients), queue),
        quota=np.zeros(clients),
    )


class TestMeanRewards:
    @pytest.mark.slow
    def test_against_a_round_by_round_simulation(self):
        """Simulates 4000 rounds of every pair, with the reward that a policy observes."""
        network = prepare(SMALL.scenario(), [7]).network
        rounds, clients, channels = 4000, network.clients, network.channels
        rewards = np.empty((rounds, clients, channels))
        for t in range(rounds):
            for channel in range(channels):
                delay_s = network.delays(t, np.zeros(1), np.full((1, clients), channel)).total_s[0]
                for client in range(clients):
                    punctual = delay_s[client] <= network.deadline_s
                    rewards[t, client, channel] = 1.0 - delay_s[client] / network.deadline_s if punctual else 0.0
        estimate = mean_rewards(SMALL, 7)
        error = rewards.std(axis=0) * np.sqrt(1 / rounds + 1 / 10_000)  # mean_rewards uses 10,000 other draws
        assert estimate.shape == (clients, channels) == (6, 4)
        # One of 24 pairs exceeds 4.5 standard errors by chance once in 6000 runs. The reward of a pair that is rarely
        # punctual has a skewed distribution, hence the extra 1e-3.
        assert np.all(np.abs(estimate - rewards.mean(axis=0)) <= 4.5 * error + 1e-3)
        assert np.median(error) < 0.01 < np.ptp(estimate) / 10

    def test_all_policies_of_a_setting_share_a_read_only_array(self):
        rewards = mean_rewards(SMALL, 7)
        assert mean_rewards(Experiment("fashion-mnist", "random", "clients-6"), 7) is rewards
        assert not np.array_equal(mean_rewards(SMALL, 8), rewards)
        assert mean_rewards(Experiment("fashion-mnist", "lane"), 7).shape == (10, 4)
        with pytest.raises(ValueError, match="read-only"):
            rewards[0, 0] = 1.0

    def test_a_longer_deadline_rewards_more(self):
        base, longer = (mean_rewards(Experiment("fashion-mnist", "lane", s), 3) for s in ("base", "deadline-2"))
        assert np.all(longer >= base - 0.02)
        assert longer.mean() > base.mean() + 0.05


class TestAssignments:
    def test_the_assignment_is_the_inverse_of_the_clients_by_channel(self):
        rng = np.random.default_rng(1)
        for clients, channels in ((7, 3), (3, 5), (4, 4), (1, 1)):
            client = np.full((30, channels), -1)
            for row in client:
                count = rng.integers(0, min(clients, channels) + 1)
                row[rng.permutation(channels)[:count]] = rng.permutation(clients)[:count]
            assignment = assignment_of(a_result(client, clients))
            assert assignment.shape == (30, clients)
            back = np.full_like(client, -1)
            for t, i in np.argwhere(assignment >= 0):
                back[t, assignment[t, i]] = i
            np.testing.assert_array_equal(back, client)
            np.testing.assert_array_equal((assignment >= 0).sum(axis=1), (client >= 0).sum(axis=1))

    def test_by_hand(self):
        found = assignment_of(a_result([[2, 0], [-1, 1], [-1, -1]], 3))
        np.testing.assert_array_equal(found, [[1, -1, 0], [-1, 1, -1], [-1, -1, -1]])


@pytest.mark.slow
class TestRegret:
    def test_against_hand_computed_regret(self):
        """Three clients, two channels: mu* = 0.7 (client 0 on channel 0, client 2 on channel 1)."""
        mu = np.array([[0.9, 0.3], [0.5, 0.2], [0.8, 0.7]])
        result = a_result([[0, 2], [2, 0], [1, 2], [-1, -1], [0, -1]], 3)
        regret = regret_and_timing.pseudo_regret(mu, assignment_of(result))
        np.testing.assert_allclose(np.diff(regret, prepend=0.0), [0.0, 0.4, 0.2, 0.7, -0.2])

    def test_panels_show_every_policy_and_say_that_the_bound_is_vacuous(self, tmp_path, monkeypatch):
        store, plan = ResultStore(tmp_path, rounds=12), ReproductionPlan(select_figures(["fig-regret"]), 3, 1)
        compute_schedules(plan, store, lambda name: None)
        paper, others = panels = regret_panels(plan, store)
        assert [*paper.lines] == [f"{kind} V={v}" for kind in ("OM", "GMBA") for v in (1, 10, 100)]
        assert {"Random", "Round Robin", "Single-UCB 0.01", "Single-UCB 0.1", "lane"} < set(others.lines)
        assert len(others.lines) == 6
        assert " ".join(paper.title.split()).startswith("The paper's policies Theorem 4's bound is vacuous in 18 of 18")
        assert "does not exceed the largest queue" in " ".join(paper.title.split())
        experiment = Experiment("fashion-mnist", "lane")
        for seed in range(3):
            mu, client = mean_rewards(experiment, seed), store.result(experiment, seed).client
            worst = [min(mu[i, j] for j, i in enumerate(row) if i >= 0) for row in client]
            best = regret_and_timing.gaps(mu).best
            np.testing.assert_allclose(others.lines["lane"].values[seed], np.cumsum(best - np.array(worst)))
        assert all(path.is_file() for path in draw(panels, tmp_path / "fig-regret"))

        monkeypatch.setattr(
            regret_and_timing, "regret_bound", lambda found, **setting: Bound(float(setting["rounds"]), None)
        )
        paper, _ = regret_panels(plan, store)
        assert paper.title == "The paper's policies"
        np.testing.assert_array_equal(paper.lines["Theorem 4, OM V=10"].values, [np.arange(1.0, 13)] * 3)
        assert regret_panels(ReproductionPlan(select_figures(["fig-regret"]), 3, 1, ("cifar10",)), store) == []

    def test_the_bound_uses_v_and_the_largest_queue_of_the_run(self, monkeypatch):
        settings = []

        def bound(found, **setting):
            settings.append(setting)
            return Bound(1.0, "why")

        monkeypatch.setattr(regret_and_timing, "regret_bound", bound)
        experiment = Experiment("fashion-mnist", "mamab-gmba:V=10", "clients-6")
        promise = promised_regret(experiment, 0, a_result([[0, 1, 2, 3]] * 3, 6, queue=2.5))
        assert promise.vacuous == "why"
        assert promise.room == regret_and_timing.gaps(mean_rewards(experiment, 0)).smallest - 2.5
        last = {"clients": 6, "channels": 4, "V": 10.0, "rounds": 3, "largest_queue": 2.5}
        assert settings == [{**last, "rounds": t} for t in (1, 2, 3)]


class TestComplexity:
    def test_an_exponent_is_recovered(self):
        x = np.array([2.0, 5.0, 30.0])
        assert exponent(x, 3.0 * x**1.7) == pytest.approx(1.7)

    @pytest.mark.slow
    def test_panels_have_both_matchings_with_exponents(self, monkeypatch):
        monkeypatch.setattr(regret_and_timing, "CLIENTS", (10, 20, 40))
        monkeypatch.setattr(regret_and_timing, "CHANNELS", (2, 4, 8))
        for panel, axis in zip(complexity_panels(), "UN", strict=True):
            assert panel.log
            names = [*panel.lines]
            assert names[0].startswith(f"OM, {axis}^")
            assert names[1].startswith(f"GMBA, {axis}^")
            for line in panel.lines.values():
                assert line.values.shape == (5, 3)
                assert np.all(line.values > 0)
