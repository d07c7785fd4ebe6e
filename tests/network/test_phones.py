"""Phones against FLASH's measurements, and their scaling with the model's work."""

import json
from importlib import resources

import numpy as np
import pytest

from fedlane.network.phones import Phones, TrainingWork, phone_names, phone_scores, step_s
from fedlane.validate import InputError
from support.flash_table import MEASURED, dense_layer, derived_table
from support.parts import DATA, missing

TABLE = json.loads(resources.files("fedlane").joinpath("data", "flash-phones.json").read_text())
WORK = TrainingWork(weights=1e6, multiply_adds=1e6, batch=100, steps=1)


@pytest.fixture(scope="module")
def flash():
    folder = DATA / "devices"
    if not folder.is_dir():
        missing("FLASH's measurements are not here (FEDLANE_DATA)")
    return folder


def test_the_bundled_table_is_derived_from_the_data(flash):
    derived = derived_table(flash)
    assert [tuple(phone) for phone in TABLE["phones"]] == derived["phones"]
    for bundled, fresh in zip(TABLE["measured"], derived["measured"], strict=True):
        assert (bundled["phone"], bundled["score"]) == (fresh["phone"], fresh["score"])
        np.testing.assert_allclose(bundled["coefficients"], fresh["coefficients"], rtol=1e-3)
        np.testing.assert_allclose(bundled["ratios"], fresh["ratios"], rtol=2e-3)


@pytest.mark.parametrize(("row", "phone"), enumerate(MEASURED))
def test_medians_are_those_of_the_measurements(flash, row, phone):
    """Half of the 20,000 measured steps take longer than the median here: standard error 0.5 / sqrt(20000)."""
    weights, samples, seconds = dense_layer(flash, phone)
    chosen = np.random.default_rng(0).choice(20_000, 400, replace=False)
    score = np.array(float(TABLE["measured"][row]["score"]))
    median_s = np.array(
        [step_s(score, TrainingWork(weights[k], weights[k], samples[k], 1), np.array(0.5)) for k in chosen]
    )
    assert np.mean(seconds[chosen] > median_s) == pytest.approx(0.5, abs=4 * 0.5 / 400**0.5)
    # The fit is not biased for small or large steps by more than a fifth.
    for size in (10, 100, 500):
        group = samples == size
        work = np.stack([np.ones(group.sum()), weights[group], weights[group] * size])
        fitted_s = np.array(TABLE["measured"][row]["coefficients"]) @ work
        assert np.median(seconds[group] / fitted_s) == pytest.approx(1.0, abs=0.2)
    # Nine tenths of the steps lie between the 5% and the 95% quantile.
    low_s, high_s = (
        np.array([step_s(score, TrainingWork(weights[k], weights[k], samples[k], 1), np.array(u)) for k in chosen])
        for u in (0.05, 0.95)
    )
    inside = np.mean((seconds[chosen] > low_s) & (seconds[chosen] < high_s))
    assert inside == pytest.approx(0.9, abs=4 * (0.09 / 400) ** 0.5)


def test_a_step_s_time_by_hand():
    """The Nexus 6: 0.0817876 + 2.32349e-8 x 1e6 + 2.05748e-9 x 1e8 = 0.310771 s, times the median ratio 0.9804."""
    assert step_s(np.array(383.0), WORK, np.array(0.5)) == pytest.approx(0.310771 * 0.9804, rel=1e-4)
    # The Note 10: 0.0379824 + 5.70532e-9 x 1e6 + 2.47733e-10 x 1e8 = 0.0684610 s, times 0.97946.
    assert step_s(np.array(33289.0), WORK, np.array(0.5)) == pytest.approx(0.0684610 * 0.97946, rel=1e-4)


def test_phones_in_between_are_interpolated_and_beyond_are_constant():
    slow, middle, fast = step_s(np.array([383.0, 6702.0, 33289.0]), WORK, np.full(3, 0.5))
    assert slow > middle > fast
    between = step_s(np.array([(383.0 * 6702.0) ** 0.5, (6702.0 * 33289.0) ** 0.5]), WORK, np.full(2, 0.5))
    np.testing.assert_allclose(between, [(slow * middle) ** 0.5, (middle * fast) ** 0.5])
    np.testing.assert_allclose(step_s(np.array([212.0, 76206.0]), WORK, np.full(2, 0.5)), [slow, fast])


def test_times_grow_with_the_model_s_work_and_the_steps():
    scores, half = phone_scores(), np.full(333, 0.5)
    assert len(phone_names()) == len(scores) == 333
    larger = TrainingWork(weights=1e6, multiply_adds=2e6, batch=100, steps=1)
    assert np.all(step_s(scores, larger, half) > step_s(scores, WORK, half))
    # For a large batch the time is proportional to it.
    huge, twice = (step_s(scores, TrainingWork(1e6, 1e6, batch, 1), half) for batch in (1e6, 2e6))
    np.testing.assert_allclose(twice / huge, 2.0, rtol=1e-3)
    once, five = (Phones([3], 9, TrainingWork(1e6, 1e6, 32, steps)).time_s(np.full((1, 9), 0.5)) for steps in (1, 5))
    np.testing.assert_allclose(five, 5 * once)


def test_clients_are_dealt_different_phones_by_their_seed():
    together = Phones(range(20), 400, WORK)
    assert all(len(np.unique(row[:333])) == 333 for row in together.phone)
    uniform = np.random.default_rng(0).random((20, 400))
    np.testing.assert_array_equal(Phones([7], 400, WORK).time_s(uniform[7:8])[0], together.time_s(uniform)[7])
    assert not np.array_equal(together.phone[0], together.phone[1])
    medians = together.time_s(np.full((20, 400), 0.5))
    assert medians.max() / medians.min() > 4  # 0.305 s and 0.067 s


@pytest.mark.parametrize("field", ["weights", "multiply_adds", "batch", "steps"])
def test_work_of_nothing_is_refused(field):
    with pytest.raises(InputError, match=f"the work's {field} must be"):
        TrainingWork(**{"weights": 1.0, "multiply_adds": 1.0, "batch": 1.0, "steps": 1, field: 0})


def test_the_notice_of_flash_is_bundled():
    notice = resources.files("fedlane").joinpath("data", "FLASH-NOTICE.md").read_text()
    assert "BSD 2-Clause License" in notice
    assert "THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS" in notice
