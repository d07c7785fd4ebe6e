"""Panels that need more than stored results."""

import numpy as np
import pytest

from fedlane.experiments.labels import ALL_POLICIES
from fedlane.experiments.panels import Drawer
from fedlane.experiments.reproduce import ReproductionPlan, select_figures
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.simulation.optimal_delays import optimal_delays
from fedlane.simulation.setup import prepare

pytestmark = pytest.mark.slow


def test_fig_delay_has_a_line_for_the_optimum(tmp_path):
    """Seed 29 is a network on which no policy can serve 7/8 of the quotas: the line's name says so."""
    store = ResultStore(tmp_path, rounds=8)
    plan = ReproductionPlan(select_figures(["fig-delay"]), 3, 0, ("fashion-mnist",), first_delay_seed=28)
    for policy in ALL_POLICIES:
        store.schedule(Experiment("fashion-mnist", policy), plan.scheduled_seeds)
    (panel,) = Drawer(plan, store).fig_delay()
    assert len(panel.lines) == len(ALL_POLICIES) + 1
    round_s = optimal_delays(prepare(Experiment("fashion-mnist", "random").scenario(8), plan.scheduled_seeds))
    served = round_s[~np.isnan(round_s)]
    np.testing.assert_allclose(panel.lines["optimum (2 of 3 seeds)"].values, served[:, None] * np.arange(1, 9))
