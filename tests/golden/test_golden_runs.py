"""Schedules, learning curves and episodes are those that are stored.

Set FEDLANE_GOLDEN_EXACT=1 to compare trained weights to the bit as well. Sums of matrix products depend on the
processor and its BLAS library, so this holds only on the kind of machine that wrote digests.json.
"""

import cases
import pytest
from records import curve_record, pinned, run_parts, same_curves, same_parts, stored

from support.parts import missing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
RUNS = [(group, name) for group, runs in cases.GROUPS.items() for name in runs]


@pytest.mark.parametrize(("group", "name"), RUNS, ids=[f"{group}: {name}" for group, name in RUNS])
def test_a_run_is_the_stored_one(group, name):
    case = cases.GROUPS[group][name]
    if case.missing:
        missing("measured traces are not here (FEDLANE_DATA)")
    same_parts(run_parts(case.run().tables, training=group == "losses"), pinned(group, name))


@pytest.mark.parametrize("name", cases.CURVES)
def test_a_learning_curve_is_the_stored_one(name):
    same_curves(curve_record(cases.CURVES[name].run()), stored()["curves"][name])


def test_episodes_of_the_environment_are_the_stored_ones():
    try:
        import episodes
    except ModuleNotFoundError:
        missing("gymnasium is not installed (extra gym)")
    for name, record in episodes.episode_records().items():
        same_parts(record, pinned("episodes", name))


def test_nothing_is_missing():
    assert cases.missing() == set()
    for group, runs in cases.GROUPS.items():
        assert set(stored()[group]["choices"]) == set(runs)
    assert set(stored()["curves"]) == set(cases.CURVES)


def test_the_worlds_show_what_they_are_there_for():
    """Clients are absent, have empty batteries or no budget left, and are late, so that their columns say something."""
    for name in ("churn lane", "battery lane", "phones lane"):
        run = (cases.GROUPS["batteries"].get(name) or cases.GROUPS["worlds"][name]).run()
        present = run.client_rounds["present"].to_pylist()
        assert 0 < sum(present) < len(present), name
        assert 0 < sum(run.assignments["punctual"].to_pylist()) < run.assignments.num_rows, name
        assert run.assignments["predicted_median_s"].null_count == 0, name
