"""Equal tuning: which values are tried, and which are chosen."""

import json
import math

import numpy as np
import pytest

from fedlane.experiments.arena.arena_worlds import make_world
from fedlane.experiments.arena.entrants import built_in_policies, entrants, make_entrant
from fedlane.experiments.arena.trial_design import trial_parameters
from fedlane.experiments.arena.tuned import TunedValues, parameter_text, read_tuned, shipped_values
from fedlane.experiments.arena.tuning import TuningPlan, chosen_trial, tunable
from fedlane.scheduling.ranges import Choices, ParameterRange
from fedlane.scheduling.registry import make_policy
from fedlane.validate import InputError

RANGES = {
    "V": ParameterRange(1.0, 100.0, "log"),
    "slack": ParameterRange(0.0, 0.25),
    "window": ParameterRange(1, 4, integer=True),
    "rule": Choices(("additive", "success")),
}


def trial(ratio, shortfall, **parameters):
    return {"parameters": parameters, "time_ratio": {"w": ratio}, "shortfall": {"w": shortfall}}


class TestDesign:
    def test_the_first_trial_is_the_default_and_the_others_stay_in_their_ranges(self):
        rows = trial_parameters(RANGES, 200)
        assert rows[0] == {}
        assert len(rows) == 200
        for row in rows[1:]:
            assert 1.0 <= row["V"] <= 100.0
            assert 0.0 <= row["slack"] <= 0.25
            assert row["window"] in (1, 2, 3, 4)
            assert row["rule"] in ("additive", "success")

    def test_it_is_the_same_in_every_process_and_a_longer_one_only_adds_trials(self):
        one = trial_parameters({"x": ParameterRange(0.0, 1.0)}, 4)
        golden = (1 + math.sqrt(5)) / 2
        assert one == [{}, *({"x": float(f"{(0.5 + k / golden) % 1:.4g}")} for k in (1, 2, 3))]
        assert trial_parameters(RANGES, 20) == trial_parameters(RANGES, 50)[:20]

    def test_values_are_spread_evenly(self):
        """Kolmogorov's distance of 999 points to the uniform distribution is far below that of random points."""
        rows = trial_parameters(RANGES, 1000)[1:]
        shares = np.sort([math.log(row["V"]) / math.log(100.0) for row in rows])
        assert np.abs(shares - (np.arange(999) + 0.5) / 999).max() < 0.01
        windows = np.bincount([row["window"] for row in rows], minlength=5)[1:]
        assert np.abs(windows / 999 - 0.25).max() < 0.01

    def test_a_policy_without_ranges_has_one_trial(self):
        assert trial_parameters({}, 20) == [{}]

    def test_every_trial_of_every_built_in_policy_is_accepted(self):
        for name in tunable(built_in_policies()):
            for parameters in trial_parameters(make_policy(name).ranges, 20):
                make_policy(parameter_text(name, parameters))


class TestChoice:
    def test_the_fastest_trial_that_serves(self):
        rows = [trial(1.0, 0.01), trial(0.5, 0.04), trial(0.8, 0.03), trial(0.9, 0.01)]
        assert chosen_trial(rows, 0.02) == 2

    def test_trials_that_serve_more_worlds_come_first(self):
        rows = [
            {"time_ratio": {"u": 1.0, "v": 1.0}, "shortfall": {"u": 0.0, "v": 0.0}},
            {"time_ratio": {"u": 0.1, "v": 0.1}, "shortfall": {"u": 0.0, "v": 0.5}},
        ]
        assert chosen_trial(rows, 0.02) == 0

    def test_a_tie_goes_to_the_default_and_failed_trials_do_not_count(self):
        assert chosen_trial([trial(1.0, 0.0), trial(1.0, 0.0)], 0.02) == 0
        assert chosen_trial([{"error": "failed"}, trial(1.5, 0.0)], 0.02) == 1
        with pytest.raises(InputError, match="no trial has results"):
            chosen_trial([{"error": "failed"}], 0.02)


class TestEntrants:
    def test_a_policy_with_tuned_values_stands_there_twice(self):
        trials = [{"parameters": {}}, {"parameters": {"V": 7.0}}]
        values = TunedValues(
            "test", {"policies": {"lane": {"version": make_policy("lane").version, "chosen": 1, "trials": trials}}}
        )
        labels = [(e.label, e.policy) for e in entrants(["lane", "lane:V=3", "random"], values)]
        assert labels == [
            ("lane", "lane"),
            ("lane (tuned)", "lane:V=7.0"),
            ("lane:V=3", "lane:V=3"),
            ("random", "random"),
        ]

    def test_values_of_another_version_are_refused(self):
        values = TunedValues(
            "test", {"policies": {"lane": {"version": 99, "chosen": 0, "trials": [{"parameters": {}}]}}}
        )
        with pytest.raises(InputError, match="version 99 of lane"):
            entrants(["lane"], values)

    def test_leagues_follow_from_what_a_policy_knows_and_yardsticks_have_none(self):
        names = ("lane", "oort", "genie", "clairvoyant", "support.counted_policy:Counted")
        assert [make_entrant(name).league for name in names] == ["delays", "losses", "yardstick", "yardstick", "delays"]

    def test_the_packages_values_fit_the_packages_policies(self):
        entrants(built_in_policies(), shipped_values())

    def test_all_of_fedlanes_policies_stand_there_once(self):
        names = built_in_policies()
        assert {"lane", "random", "cs-ucb-q", "genie"} <= set(names)
        assert "single-ucb" not in names

    @pytest.mark.parametrize(("content", "line"), [("{", "is damaged"), ('{"format": 9}', "has format 9")])
    def test_a_damaged_file_is_refused(self, tmp_path, content, line):
        (tmp_path / "tuned.json").write_text(content)
        with pytest.raises(InputError, match=line):
            read_tuned(tmp_path)


def test_the_file_lists_every_trial_and_its_choice_can_be_checked():
    from fedlane.experiments.arena.playing import leaderboard_schema
    from support.arena_tables import entrant, leaderboard

    plan = TuningPlan(("lane",), (make_world("churn", rounds=5),), (0, 1), 3)
    times = ([10, 20], [5, 30], [8, 16])
    rows = [entrant(f"lane trial {k}", values, world="churn", shortfall=0.01 * k) for k, values in enumerate(times)]
    content = json.loads(json.dumps(plan.content(leaderboard(*rows))))
    trials = content["policies"]["lane"]["trials"]
    assert [trial["time_ratio"]["churn"] for trial in trials] == pytest.approx([1.0, 1.0, 0.8])
    assert content["policies"]["lane"]["chosen"] == 2 == chosen_trial(trials, content["tolerance"])
    assert (content["seeds"], content["worlds"]["churn"]["rounds"]) == ([0, 1], 5)
    assert trials[1]["parameters"] == trial_parameters(make_policy("lane").ranges, 3)[1]
    with pytest.raises(InputError, match="the default of lane failed"):
        plan.content(leaderboard(*rows[1:]))
    assert leaderboard_schema().names[:5] == ["world", "policy", "tuned", "league", "seed"]
