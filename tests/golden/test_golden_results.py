"""Schedules and learning curves are those of the time of writing.

Set FEDLANE_GOLDEN_EXACT=1 to compare trained weights to the bit as well. Sums of matrix products depend on the
processor and its BLAS library, so this holds only on the kind of machine that wrote digests.json.
"""

import cases
import pytest
import torch
from golden_checks import same_curves, same_schedule

pytestmark = pytest.mark.usefixtures("fresh_cache")
SLOW = {"paper-cifar10 genie", "paper-cifar10-literal genie", "cnn paper"}
"""Cases of five seconds and more; `make quick` leaves them out."""


def marked(names):
    """The names as parameters; the slow ones are marked."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.mark.parametrize("name", marked(cases.SCHEDULES))
def test_schedule(name, digests):
    now, then = cases.schedule_records(cases.SCHEDULES[name]), digests["schedules"][name]
    assert now.keys() == then.keys()
    for seed, record in then.items():
        same_schedule(now[seed], record)


@pytest.mark.parametrize("name", marked(cases.CURVES))
def test_learning_curve(name, digests):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        same_curves(cases.curve_record(cases.CURVES[name].run(learning=True)), digests["curves"][name])
    finally:
        torch.set_num_threads(threads)


def test_nothing_is_missing(digests):
    assert cases.missing() == set()
    assert set(digests["schedules"]) == set(cases.SCHEDULES)
    assert set(digests["curves"]) == set(cases.CURVES)
