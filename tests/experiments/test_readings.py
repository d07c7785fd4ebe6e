"""The map of readings: its design, what a reading changes, and how verdicts are counted."""

from dataclasses import replace

import numpy as np
import pytest

from fedlane.experiments.claims import CLAIMS, Verdict
from fedlane.experiments.claims.verdicts import DEPENDS, HOLDS, NOT_COMPUTED, NOT_DECIDED, REFUTED
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.experiments.readings.axes import AXES, PRESET, PaperReading
from fedlane.experiments.readings.design import balance, design_text, even_design, reading_named, stored_design
from fedlane.experiments.readings.favourable import (
    FRESH_SEED,
    confirmation_plan,
    favourable_section,
    favourable_table,
    most_favourable,
)
from fedlane.experiments.readings.map_page import map_page
from fedlane.experiments.readings.mapping import MapPlan, judge_readings
from fedlane.experiments.readings.shares import map_of, map_table, sentences, shares, shown_verdict
from fedlane.experiments.reproduce import compute_schedules
from fedlane.experiments.store import Experiment, under
from fedlane.report.verdict_map import draw_verdict_map
from fedlane.scenario import Scenario
from fedlane.validate import InputError


class TestDesign:
    @pytest.mark.slow
    def test_is_the_stored_one_and_has_at_least_60_different_readings(self):
        assert design_text(even_design()) == design_text(stored_design())
        assert len({reading.levels for reading in stored_design()}) >= 60

    def test_every_level_is_used_about_equally_often(self):
        for axis in AXES:
            counts = balance(stored_design())[axis.name]
            assert counts.sum() == 64
            assert np.abs(counts - 64 / len(axis.levels)).max() <= 1.5

    def test_every_pair_of_levels_of_two_axes_occurs(self):
        for a in range(len(AXES)):
            for b in range(a):
                pairs = {(reading.levels[a], reading.levels[b]) for reading in stored_design()}
                assert len(pairs) == len(AXES[a].levels) * len(AXES[b].levels)

    def test_an_unknown_reading_is_refused_with_the_nearest_name(self):
        with pytest.raises(InputError, match="map-00"):
            reading_named("map-000")


class TestReading:
    def test_the_preset_is_one_point_of_the_map(self):
        preset = Scenario.load("paper-fmnist")
        assert preset.with_values(PRESET.values()) == preset

    def test_every_level_changes_the_scenario_or_the_policy(self):
        preset = Scenario.load("paper-fmnist")
        for k, axis in enumerate(AXES):
            for level in axis.levels:
                reading = PaperReading("x", tuple(level if a == k else other.preset for a, other in enumerate(AXES)))
                changed = preset.with_values(reading.values()) != preset
                changed |= reading.policy("single-ucb:beta=0.1") != "single-ucb:beta=0.1"
                assert changed == (level != axis.preset)

    def test_an_experiment_has_the_values_of_its_reading(self):
        reading = reading_named("map-01")
        assert reading.levels[0] == "2 kbit"
        scenario = under(Experiment("fashion-mnist", "single-ucb:beta=0.1"), reading).scenario()
        assert scenario.network.payload_bits == 2e3
        assert scenario.data.samples_per_client == 800
        assert scenario.policies["mamab-om"]["exploration"] == 1.0
        assert scenario.rounds == 500
        assert under(Experiment("fashion-mnist", "single-ucb:beta=0.1"), reading).policy == "ucb-index:exploration=0.1"

    def test_the_same_interference_is_the_middle_of_the_readings_range(self):
        reading = next(reading for reading in stored_design() if reading.level("interference") == "high")
        scenario = under(Experiment("fashion-mnist", "random", "same-interference"), reading).scenario()
        assert scenario.network.interference_db == (12.5, 12.5)
        preset = Experiment("fashion-mnist", "random", "same-interference").scenario()
        assert preset.network.interference_db == (2.5, 2.5)


def verdicts(*of_claims: str) -> list[Verdict]:
    return [
        Verdict(number, "Fig. 2", f"claim {number}", "measure", 0.1, 0.0, 0.2, verdict, 3, "", verdict)
        for number, verdict in enumerate(of_claims, start=1)
    ]


def tiny_map() -> dict[PaperReading, list[Verdict]]:
    """40 readings: claim 1 always holds, claim 2 holds at 1 kbit only, claim 3 never, claim 4 was not computed."""
    levels = {f"reading {k}": "1 kbit" if k < 20 else "10 kbit" for k in range(40)}
    return {
        PaperReading(name, (payload, *PRESET.levels[1:])): verdicts(
            HOLDS, HOLDS if payload == "1 kbit" else NOT_DECIDED, REFUTED, NOT_COMPUTED
        )
        for name, payload in levels.items()
    }


class TestSummary:
    def test_shares_are_counted_over_the_computed_readings(self):
        first, second, third, fourth = shares(tiny_map())
        assert first.share(HOLDS) == 1.0
        assert second.share(HOLDS) == 0.5
        assert second.deciding == ["payload (1 kbit: 100%, 10 kbit: 0%)"]
        assert third.counts[REFUTED] == 40
        assert third.deciding == []
        assert fourth.judged == 0

    def test_the_sentences_name_the_claims_at_both_ends_and_the_shares_between(self):
        text = sentences(shares(tiny_map()))
        ends = (
            "claim 1 holds under at least 90% of the readings, and claim 3 holds under none; the share of readings "
            "under which each of the others holds is: 2 (50%). Refuted under more than half of the readings: 3 (100%)."
        )
        assert text.startswith("Over 40 readings of what the paper leaves out, " + ends)
        assert text.endswith("without a correction, " + ends)

    def test_the_table_has_a_row_for_every_cell(self):
        table = map_table(tiny_map())
        assert table.num_rows == 160
        assert table.column("payload").to_pylist()[:4] == ["1 kbit"] * 4

    def test_a_cell_that_the_correction_leaves_open_shows_its_own_intervals(self):
        decided, open_, shown = verdicts(HOLDS, NOT_DECIDED, NOT_DECIDED)
        assert shown_verdict(decided) == HOLDS
        assert shown_verdict(open_) == NOT_DECIDED
        assert shown_verdict(replace(shown, uncorrected=REFUTED)) == "refuted, uncorrected"

    def test_the_stored_table_gives_the_same_map(self):
        stored = map_of(map_table(tiny_map()))
        assert list(stored) == list(tiny_map())
        assert [row.counts for row in shares(stored)] == [row.counts for row in shares(tiny_map())]
        assert shares(stored)[1].deciding == shares(tiny_map())[1].deciding

    def test_the_page_shows_picture_claims_and_readings(self):
        page = map_page(tiny_map(), "figures/fig-readings.png", 3, 2)
        assert "delays over 3 paired seeds, accuracy over\n2, on Fashion-MNIST" in page
        assert "![verdicts by claim and reading](figures/fig-readings.png)" in page
        assert "| 50% | 0% | 0% | 50% | 40 | 50% | 0% | payload (1 kbit: 100%, 10 kbit: 0%) |" in page
        assert "40 of 160 cells are not computed: " in page


class TestFavourable:
    def test_most_claims_hold_under_it_and_ties_go_to_the_fewest_refuted(self):
        many = {
            PaperReading("a", PRESET.levels): verdicts(HOLDS, HOLDS, REFUTED, REFUTED),
            PaperReading("b", PRESET.levels): verdicts(HOLDS, HOLDS, REFUTED, NOT_DECIDED),
            PaperReading("c", PRESET.levels): verdicts(HOLDS, NOT_DECIDED, NOT_DECIDED, NOT_DECIDED),
        }
        assert most_favourable(many).name == "b"

    def test_it_is_judged_on_seeds_that_the_choice_has_not_seen(self):
        plan = MapPlan(stored_design())
        fresh = confirmation_plan(plan, stored_design()[3])
        assert fresh.readings == (stored_design()[3],)
        assert fresh.first_seed == FRESH_SEED >= plan.first_seed + plan.schedule_seeds
        assert fresh.schedule_seeds == plan.schedule_seeds

    def test_the_section_says_what_is_confirmed_lost_and_refuted(self):
        reading = PaperReading("map-07", ("1 kbit", *PRESET.levels[1:]))
        table = favourable_table(
            {reading: verdicts(HOLDS, HOLDS, HOLDS, NOT_DECIDED)},
            {reading: verdicts(HOLDS, HOLDS, REFUTED, HOLDS)},
        )
        text = favourable_section(table, reading, 20)
        assert "hold under map-07: 3 of 4" in text
        assert "by payload 1 kbit (not 5 kbit), and" in text
        assert "seeds 1000 to 1019" in text
        confirmed = "2 of these 3 claims hold again (1, 2); 3 no longer holds; 4 holds in addition; 1 is refuted (3)."
        assert confirmed in text


class Refusing:
    """A runner that computes nothing."""

    retried = 0

    def run(self, batches):
        assert not batches, "computed again"
        return iter(())


@pytest.mark.slow
class TestMapping:
    @pytest.fixture(scope="class")
    def judged(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("map")
        plan = MapPlan(stored_design()[:2], schedule_seeds=3, learning_seeds=1, rounds=16, long_factor=2)
        for of_rounds, store in plan.groups(folder):
            compute_schedules(of_rounds, store, lambda name: None)
        return plan, folder, judge_readings(plan, folder, InProcessRunner(), lambda: None)

    def test_every_claim_is_judged_and_those_about_accuracy_wait_for_learning(self, judged):
        _, _, by_reading = judged
        for of_reading in by_reading.values():
            assert [verdict.number for verdict in of_reading] == list(range(1, len(CLAIMS) + 1))
            assert of_reading[0].verdict == NOT_COMPUTED  # claim 1 is about accuracy
            assert of_reading[3].verdict in (HOLDS, REFUTED, DEPENDS, NOT_DECIDED)  # claim 4 is about delays
            assert of_reading[3].low < of_reading[3].high

    def test_readings_differ(self, judged):
        first, second = judged[2].values()
        assert first[3].effect != second[3].effect

    def test_stored_verdicts_are_not_computed_again(self, judged):
        plan, folder, by_reading = judged
        assert judge_readings(plan, folder, Refusing(), lambda: None) == by_reading

    def test_verdicts_of_other_seeds_are(self, judged):
        plan, folder, _ = judged
        with pytest.raises(AssertionError, match="computed again"):
            judge_readings(replace(plan, first_seed=1), folder, Refusing(), lambda: None)


@pytest.mark.slow
def test_the_picture_is_drawn(tmp_path):
    cells = [[HOLDS, REFUTED], [NOT_DECIDED, NOT_COMPUTED], ["holds, uncorrected", "refuted, uncorrected"]]
    written = draw_verdict_map(["1. first", "2. second", "3. third"], ["map-00", "map-01"], cells, tmp_path / "map")
    assert [path.name for path in written] == ["map.png", "map.pdf"]
    assert written[0].read_bytes()[:4] == b"\x89PNG"
