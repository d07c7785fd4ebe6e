"""Every built-in policy keeps the contract and follows its equation."""

import numpy as np
import pytest

from fedlane import check_policy
from fedlane.matching import max_min_matching
from fedlane.records import DelayDistributions, Problem
from fedlane.rng import RoundStreams
from fedlane.rounds import check
from fedlane.scheduling import make_policy, policies
from fedlane.scheduling.estimates import bonus, mean
from fedlane.scheduling.mamab import MamabGmba, MamabOm
from fedlane.scheduling.policy import updated_queues
from support.policy_rounds import context_of, delays_of, feedback_of, rounds_of, run

VARIANTS = [
    *(
        "lane",
        "lane-2026",
        "lane:V=0",
        "lane:forgetting=0.02,alarm=2,idle_channels=true",
        "mamab-om",
        "mamab-om:V=1,queue_weight=success",
        "mamab-om:V=0,T0=0.1",
        "mamab-om:exploration=0",
    ),
    *("mamab-gmba", "mamab-gmba:T0=0.1,queue_weight=success", "random", "round-robin", "ucb-index:exploration=0.01"),
    *("ucb-index:exploration=0", "cs-ucb-q:beta=0", "cs-ucb-q:beta=1", "single-ucb", "genie", "genie:V=100"),
    *("proportional-fair", "age-of-update", "fedcs", "fedcs:fraction=0.3,round_share=0.4", "rbcs-f", "rbcs-f:V=0"),
    *("thompson", "mamab-sw", "mamab-sw:window=3,T0=0.1", "mamab-discounted", "mamab-discounted:discount=0.5,T0=0.1"),
    *("glr-cucb", "glr-cucb:history=5,delta=0.9,forced_share=0", "clairvoyant", "oort", "oort:pacer_step=2"),
    *("power-of-choice", "power-of-choice:candidates=1", "tifl", "tifl:profiling=1,interval=2,credits=0.3"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_built_in_policy_keeps_the_contract_for_a_while(name, monkeypatch):
    """With more and with fewer clients than channels, for 14 rounds, in the last two of which nobody is available."""
    monkeypatch.setattr(check, "_SIZES", ((5, 2), (2, 3)))
    monkeypatch.setattr(check, "_ROUNDS", 14)
    check_policy(make_policy(name))


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_every_built_in_policy_keeps_the_contract(name):
    check_policy(make_policy(name))


def test_the_variants_cover_every_policy():
    built_in = {name for name, policy in policies().items() if policy.__module__.startswith("fedlane.")}
    assert {name.split(":")[0] for name in VARIANTS} == built_in


def problem(replicas=1, clients=4, channels=2, quota=0.4, deadline_s=4.0):
    return Problem(clients, channels, 100, deadline_s, np.full((replicas, clients), quota))


def test_queue_recursion_by_hand():
    queue = np.array([[0.0, 0.5, 2.0, 0.1]])
    quota = np.array([[0.4, 0.4, 0.3, 0.2]])
    punctual = np.array([[False, True, True, True]])
    np.testing.assert_allclose(updated_queues(queue, quota, punctual), [[0.4, 0.0, 1.3, 0.0]])


def after(policy, played, uploads):
    """The state and the queues after client 0 alone had these channels and delays in seconds."""
    state, queue = policy.init(played), np.zeros(played.quotas.shape)
    for channel, delay_s in uploads:
        known = feedback_of(played, [channel, -1, -1, -1], [delay_s, 0, 0, 0])
        state, queue = policy.update(state, known), updated_queues(queue, played.quotas, known.punctual)
    return state, queue


def test_estimate_by_hand():
    """Equation (11): U = 4, client 0 tried 3 times on channel 0 and once on channel 1."""
    policy = MamabOm(V=10.0, exploration=0.5)
    state, queue = after(policy, problem(), ((0, 1.0), (0, 2.0), (0, 6.0), (1, 3.0)))
    # 0.4 - 1 twice, then late: 0.4 - 0, then punctual
    assert queue[0].tolist() == pytest.approx([0.0, 1.6, 1.6, 1.6])
    rewards = (0.75 + 0.5 + 0.0) / 3, 0.25
    radius = [0.5 * np.sqrt(6 * np.log(4) / n) for n in (3, 1)]
    for of_client in (0.0, 0.7):
        queue[0, 0] = of_client
        estimate = policy.estimate(state, queue)
        np.testing.assert_allclose(estimate[0, 0], [of_client + 10 * (rewards[k] + radius[k]) for k in (0, 1)])
        assert np.all(np.isposinf(estimate[0, 1:]))


def test_success_weight_by_hand():
    """Once punctual and then late three times: the queue is 3 x 0.4."""
    policy = MamabOm(V=10.0, exploration=0.01, queue_weight="success")
    estimate = policy.estimate(*after(policy, problem(), ((0, 1.0), (0, 6.0), (0, 6.0), (0, 6.0))))
    radius = 0.01 * np.sqrt(6 * np.log(4) / 4)
    expected = 1.2 * (0.25 + radius) + 10 * (0.75 / 4 + radius)
    assert estimate[0, 0, 0] == pytest.approx(expected)
    assert np.isposinf(estimate[0, 0, 1])


def test_bonus_is_infinite_only_where_untried_and_mean_is_zero_there():
    count = np.array([[[0, 1], [2, 2]]])
    result = bonus(count, 0.1)
    assert np.isposinf(result[0, 0, 0])
    assert result[0, 0, 1] == 0  # log of max(n, 1)
    assert result[0, 1, 0] == pytest.approx(0.1 * np.sqrt(4 * np.log(4) / 2))
    np.testing.assert_array_equal(mean(np.array([[[0.0, 1.0], [3.0, 1.0]]]), count), [[[0, 1], [1.5, 0.5]]])


def explored(policy, rounds, replicas=400):
    """The share of replicas whose choice in each round differs from the matching on the estimate."""
    played = problem(replicas)
    state = policy.init(played)
    state["count"][:] = 5
    state["reward"][:] = np.random.default_rng(0).random(state["reward"].shape) * 5
    matching = max_min_matching(policy.estimate(state, np.zeros(played.quotas.shape)))
    streams = RoundStreams(range(replicas), "policy")
    chosen = (policy.select(state, context_of(played, t), streams.at(t)) for t in rounds)
    return [np.mean(np.any(assignment != matching, axis=1)) for assignment in chosen]


def test_exploration_follows_algorithm_1():
    """Random with probability exp(-(t - 1) / T0), always in the first round; 11 of 12 random matchings differ."""
    rounds = (0, 1, 11, 101, 401)
    shares = explored(MamabOm(T0=100.0), rounds)
    for t, share in zip(rounds, shares, strict=True):
        expected = np.exp(-max(t - 1, 0) / 100) * 11 / 12
        assert share == pytest.approx(expected, abs=5 * np.sqrt(0.25 / 400))


def test_om_takes_the_max_min_matching_when_it_does_not_explore():
    assert explored(MamabOm(T0=1e-3), [5]) == [0.0]


def test_gmba_keeps_last_round_unless_the_new_one_is_strictly_better():
    policy = MamabGmba(T0=1e-3)
    estimate = np.array([[[5.0, 4.0], [5.0, 1.0], [0.0, 0.0]]])
    available = np.ones((1, 3), bool)
    keys = np.array([[0.1, 0.2, 0.9]])  # greedy order 0, 1, 2: client 0 takes channel 0, client 1 gets 1.0
    better, worse, equal = ([[1, 0, -1]], [[-1, -1, -1]], [[0, 1, -1]])
    assert policy.match(estimate, keys, available, np.array(better)).tolist() == better
    assert policy.match(estimate, keys, available, np.array(worse)).tolist() == [[0, 1, -1]]
    assert policy.match(estimate, keys, available, np.array(equal)).tolist() == equal
    gone = np.array([[True, False, True]])
    masked = np.where(gone[..., None], estimate, -np.inf)
    assert policy.match(masked, keys, gone, np.array(better)).tolist() == [[0, -1, 1]]


def test_random_serves_all_pairs_equally():
    """4,000 replicas: each of the 4 x 2 pairs has probability 1/4, within 5 standard errors."""
    policy = make_policy("random")
    played = problem(4000)
    chosen = policy.select(policy.init(played), context_of(played), RoundStreams(range(4000), "policy").at(0))
    for client in range(4):
        for channel in range(2):
            assert np.mean(chosen[:, client] == channel) == pytest.approx(0.25, abs=5 * np.sqrt(0.1875 / 4000))
    assert np.all(np.sum(chosen >= 0, axis=1) == 2)


def play(policy, played, delay_s, number, available=True):
    """Channels of one replica (T, U), and the rounds after them; each client always takes ``delay_s``."""
    rounds = rounds_of(policy, played)
    chosen = run(rounds, number, lambda t, channel: delays_of(channel, delay_s), ready=lambda t: available)
    return chosen[:, 0], rounds


def test_round_robin_takes_groups_in_turn_and_rotates_channels():
    chosen, _ = play(make_policy("round-robin"), problem(1, 10, 4), np.ones(10), 13)
    assert [np.flatnonzero(row >= 0).tolist() for row in chosen[:4]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [0, 1, 2, 3],
    ]
    assert chosen[:, 0][::3].tolist() == [0, 1, 2, 3, 0]


def test_round_robin_skips_a_group_without_available_clients():
    available = np.ones(10, bool)
    available[4:8] = False
    chosen, _ = play(make_policy("round-robin"), problem(1, 10, 4), np.ones(10), 4, available)
    assert [np.flatnonzero(row >= 0).tolist() for row in chosen] == [[0, 1, 2, 3], [8, 9], [0, 1, 2, 3], [8, 9]]


def test_ucb_index_prefers_the_fast_and_starves_the_slow():
    chosen, _ = play(make_policy("ucb-index:exploration=0.01"), problem(), [1.0, 1.2, 3.0, 3.5], 200)
    share = np.mean(chosen >= 0, axis=0)
    assert share[:2].min() > 0.95
    assert share[2:].max() < 0.05


@pytest.mark.slow
def test_the_former_lane_tries_every_pair_first():
    _, rounds = play(make_policy("lane-2026"), problem(1, 6, 3), np.ones(6), 6)
    assert rounds.state["count"].min() == rounds.state["count"].max() == 1


def objective(queue, truth, assignment, V):
    """The objective of lane, written out over the cells of one replica."""
    product, drift = np.ones(truth.cdf.shape[-1]), 0.0
    for i, j in enumerate(assignment):
        if j >= 0:
            product = product * truth.cdf[0, i, j]
            drift += queue[i] * truth.success[0, i, j]
    return drift - V * truth.cdf.shape[2] * (1 - product.mean())


def test_genie_finds_the_best_matching_nearly_always():
    """Compared with all matchings of 5 clients on 3 channels, local search is optimal or within 5% of the range."""
    import itertools

    rng = np.random.default_rng(3)
    policy = make_policy("genie")
    exact = 0
    for trial in range(60):
        scale = rng.uniform(0.1, 1.5, (1, 5, 3))
        cells = (np.arange(32) + 0.5) / 32
        truth = DelayDistributions(1 - np.exp(-cells / scale[..., None]), 1 - np.exp(-1 / scale), 0.0)
        queue = rng.exponential(3.0, (1, 5))
        context = context_of(problem(1, 5, 3), trial, queue=queue, distributions=truth)
        chosen = policy.select({}, context, RoundStreams([0], "p").at(trial))[0]
        value = objective(queue[0], truth, chosen, policy.V)
        values = []
        for clients in itertools.permutations(range(5), 3):
            assignment = np.full(5, -1)
            assignment[list(clients)] = range(3)
            values.append(objective(queue[0], truth, assignment, policy.V))
        assert value <= max(values) + 1e-6
        assert value >= max(values) - 0.05 * (max(values) - min(values))
        exact += value >= max(values) - 1e-6
    assert exact >= 55


@pytest.mark.slow
def test_lane_groups_slow_clients():
    """Two fast and two slow clients on two channels: equal pairs take (1 + 3) / 2 s per round, mixed pairs 3 s."""
    delay_s = np.array([1.0, 1.0, 3.0, 3.0])
    chosen, rounds = play(make_policy("lane"), problem(quota=0.5), delay_s, 400)
    times = np.where(chosen >= 0, delay_s, 0.0).max(axis=1)
    assert np.mean(times[100:]) < 2.0  # quota 0.4375 each: a slow pair in 44% of rounds
    assert rounds.queue.max() < 15
