"""Who is ranked in the arena, by what, and which differences count."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import rankdata, ttest_rel

from fedlane.experiments.arena.arena_measures import jain_index
from fedlane.experiments.arena.critical_difference import critical_difference, nemenyi_distance, order_scores
from fedlane.experiments.arena.standings import standings
from support.arena_tables import entrant, leaderboard, noisy


def by_label(table):
    return {(standing.world, standing.label): standing for standing in standings(table)}


class TestQuotas:
    def test_a_shortfall_of_more_than_two_points_above_the_smallest_is_ranked_apart(self):
        table = leaderboard(
            entrant("serves", [10, 11], shortfall=0.01),
            entrant("edge", [12, 13], shortfall=0.03),
            entrant("starves", [5, 6], shortfall=0.0301),
        )
        judged = by_label(table)
        assert [judged["w", name].meets for name in ("serves", "edge", "starves")] == [True, True, False]
        assert [judged["w", name].rank for name in ("serves", "edge", "starves")] == [1, 2, None]
        assert judged["w", "starves"].difference is None

    def test_the_smallest_shortfall_is_that_of_the_world_in_any_league_but_not_a_yardsticks(self):
        table = leaderboard(
            entrant("blind", [5, 6], shortfall=0.05),
            entrant("losses", [9, 9], shortfall=0.02, league="losses"),
            entrant("genie", [3, 3], shortfall=0.0, league="yardstick"),
            entrant("blind", [5, 6], world="other", shortfall=0.05),
        )
        judged = by_label(table)
        assert judged["w", "blind"].meets is False
        assert judged["w", "losses"].meets is True
        assert judged["w", "genie"].meets is None
        assert judged["w", "genie"].rank is None
        assert judged["other", "blind"].rank == 1


class TestRanks:
    def test_ranks_are_within_a_league_and_equal_times_share_one(self):
        table = leaderboard(
            entrant("a", [10, 12]),
            entrant("b", [12, 10]),
            entrant("c", [20, 20]),
            entrant("d", [1, 1], league="losses"),
            entrant("a", [3, 4], tuned=True),
        )
        ranks = {label: standing.rank for (_, label), standing in by_label(table).items()}
        assert ranks == {"a (tuned)": 1, "a": 2, "b": 2, "c": 4, "d": 1}

    def test_the_order_is_league_by_league_then_those_that_fail_by_shortfall_then_yardsticks(self):
        table = leaderboard(
            entrant("genie", [1, 1], league="yardstick"),
            entrant("worse", [1, 1], shortfall=0.3),
            entrant("bad", [2, 2], shortfall=0.2),
            entrant("loss", [3, 3], league="losses"),
            entrant("slow", [9, 9]),
            entrant("fast", [8, 8]),
        )
        assert [s.label for s in standings(table)] == ["fast", "slow", "bad", "worse", "loss", "genie"]

    def test_the_time_to_target_is_a_median_in_which_seeds_that_fail_are_infinite(self):
        table = leaderboard(
            entrant("mostly", [10, 10, 10], targets=[4.0, None, 6.0]),
            entrant("rarely", [11, 11, 11], targets=[1.0, None, None]),
            entrant("always", [12, 12, 12], targets=[5.0, 5.0, 5.0]),
            entrant("unknown", [13, 13, 13]),
        )
        judged = by_label(table)
        assert [judged["w", name].time_to_target_s for name in ("mostly", "rarely", "always")] == [6.0, math.inf, 5.0]
        assert math.isnan(judged["w", "unknown"].time_to_target_s)
        assert [judged["w", n].target_rank for n in ("mostly", "rarely", "always", "unknown")] == [2, None, 1, None]
        assert judged["w", "mostly"].reached == 2


class TestDifferences:
    def test_p_values_are_those_of_paired_t_tests_corrected_by_holm(self):
        times = {name: noisy(mean, seed=k) for k, (name, mean) in enumerate((("a", 10), ("b", 11), ("c", 14)))}
        judged = by_label(leaderboard(*(entrant(name, values) for name, values in times.items())))
        plain = {name: ttest_rel(times[name], times["a"]).pvalue for name in ("b", "c")}
        small, large = sorted(plain, key=plain.get)
        expected = {small: min(1.0, 2 * plain[small])}
        expected[large] = max(expected[small], plain[large])
        for name, p_value in expected.items():
            assert judged["w", name].difference.p_value == pytest.approx(p_value, rel=1e-9)
        assert judged["w", "a"].difference is None

    def test_intervals_are_paired_by_seed(self):
        shared = np.array([0.0, 100.0, 200.0, 50.0])
        table = leaderboard(entrant("a", 100 + shared), entrant("b", 101 + shared))
        difference = by_label(table)["w", "b"].difference
        assert difference.low == pytest.approx(1 / 187.5)
        assert difference.decided

    def test_a_single_seed_has_no_interval(self):
        difference = by_label(leaderboard(entrant("a", [10]), entrant("b", [12])))["w", "b"].difference
        assert (difference.mean, difference.p_value, difference.decided) == (pytest.approx(0.2), None, False)


class TestCriticalDifference:
    @pytest.mark.parametrize(
        ("entrants", "quantile"),
        [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031), (9, 3.102), (10, 3.164)],
    )
    def test_the_quantiles_are_demsars(self, entrants, quantile):
        """Table 5a of Demsar (2006)."""
        distance = nemenyi_distance(entrants, 14)
        assert distance == pytest.approx(quantile * math.sqrt(entrants * (entrants + 1) / 84), abs=2e-3)

    def test_demsars_example(self):
        """Four classifiers on 14 data sets: 1.25."""
        assert nemenyi_distance(4, 14) == pytest.approx(1.25, abs=0.005)

    def test_average_ranks_and_friedmans_test_by_hand(self):
        rng = np.random.default_rng(3)
        times = {
            (world, name): noisy(10 + k, seed=int(rng.integers(99))) for world in "uvwx" for k, name in enumerate("abc")
        }
        table = leaderboard(*(entrant(name, values, world=world) for (world, name), values in times.items()))
        result = critical_difference(standings(table), "delays")
        ranks = np.array([rankdata([times[world, name].mean() for name in "abc"]) for world in "uvwx"])
        average = dict(zip("abc", ranks.mean(axis=0), strict=True))
        assert dict(zip(result.labels, result.ranks, strict=True)) == pytest.approx(average)
        statistic = 12 * 4 / (3 * 4) * (sum(rank**2 for rank in average.values()) - 3 * 16 / 4)
        assert result.p_value == pytest.approx(math.exp(-statistic / 2))  # chi-squared with two degrees of freedom

    def test_entrants_that_do_not_meet_the_quotas_come_last(self):
        table = leaderboard(entrant("a", [9]), entrant("b", [1], shortfall=0.3), entrant("c", [1], shortfall=0.2))
        judged = {standing.label: standing for standing in standings(table)}
        assert rankdata(order_scores([judged[name] for name in "abc"])).tolist() == [1, 3, 2]

    def test_groups_are_the_maximal_runs_within_the_distance(self):
        worlds = "pqrstuvwxyz"
        rows = [entrant(name, [k], world=world) for world in worlds for k, name in enumerate("abcde", start=1)]
        result = critical_difference(standings(leaderboard(*rows)), "delays")
        brute = [
            (i, j)
            for i, j in itertools.combinations(range(5), 2)
            if result.ranks[j] - result.ranks[i] < result.distance
        ]
        maximal = [
            pair for pair in brute if not any(a <= pair[0] and pair[1] <= b and (a, b) != pair for a, b in brute)
        ]
        assert result.groups() == maximal

    def test_worlds_that_lack_an_entrant_are_left_out(self):
        rows = [entrant(name, [k], world=world) for world in "xyz" for k, name in enumerate("abc", start=1)]
        result = critical_difference(standings(leaderboard(*rows[:-1])), "delays")
        assert result.worlds == ("x", "y")
        assert critical_difference(standings(leaderboard(*rows)), "losses") is None


def test_jains_index():
    assert jain_index(np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]])).tolist() == [1.0, 0.5, 0.0]
