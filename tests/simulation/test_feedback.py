"""What policies learn from a round: a late client's parts are +inf, while the trace keeps what happened."""

import numpy as np
import pytest

from fedlane import BatchPolicy, Scenario, Simulation
from fedlane.gym.episode import Episode, EpisodeTerms


class Listener(BatchPolicy):
    """Assigns the first clients in order and remembers what it was told."""

    name = "listener"

    def __init__(self):
        self.heard = []

    def init(self, problem):
        return {}

    def select(self, state, context, rng):
        rank = np.cumsum(context.available, axis=1) - 1
        return np.where(context.available & (rank < context.problem.channels), rank, -1)

    def update(self, state, feedback):
        self.heard.append(feedback)
        return state


@pytest.fixture
def scenario():
    return Scenario.load("quickstart").with_values({"network.deadline_s": 1.5, "privacy.mechanism": "none"})


def test_a_late_client_s_parts_are_infinite_for_the_policy_and_kept_in_the_trace(scenario):
    policy = Listener()
    simulation = Simulation(scenario, policy, [0, 1])
    simulation.play(until=30)
    trace = simulation.trace.played()
    late = (trace.client >= 0) & ~trace.punctual
    assert 0 < late.sum() < late.size
    assert np.isfinite(trace.total_s[late]).all()
    assert (trace.total_s[late] > 1.5).all()
    for feedback in policy.heard:
        assigned = feedback.channel >= 0
        for part in (feedback.delays.download_s, feedback.delays.compute_s, feedback.delays.upload_s):
            np.testing.assert_array_equal(np.isposinf(part), assigned & ~feedback.punctual)
            np.testing.assert_array_equal(np.isnan(part), ~assigned)


def test_gym_agents_see_the_same(scenario):
    episode = Episode(EpisodeTerms.of(scenario, 20, 5.0, 0.0), [3])
    lates = 0
    for _ in range(20):
        outcome, _ = episode.step(np.ones((1, 10, 4)))
        late = outcome.orders.given & ~outcome.punctual
        lates += late.sum()
        pair = *np.nonzero(late), outcome.orders.channel[late]
        np.testing.assert_array_equal(episode.rounds.state["last"][pair], 1.0)  # and not how late it was
    assert lates > 0
    assert (episode.rounds.state["last"] <= 1.0).all()


def test_flower_s_policy_is_told_the_same():
    from fedlane.flower.server.scheduler import MeasuredDelay, Scheduler

    policy = Listener()
    scheduler = Scheduler(policy, lanes=2, rounds=3, deadline_s=4.0, seed=0)
    scheduler.set_quotas(np.full((1, 3), 0.5))
    everybody = np.ones(3, bool)
    scheduler.rounds.start(scheduler.decide(everybody, everybody))
    scheduler.settle({0: MeasuredDelay(2.0, 1.0)})
    heard = policy.heard[0].delays
    np.testing.assert_array_equal(heard.total_s, [[2.0, np.inf, np.nan]])
    assert np.isnan(scheduler.trace.total_s[0, 0, 1])  # a server does not learn how late an upload would have been
    assert not scheduler.trace.punctual[0, 0, 1]
