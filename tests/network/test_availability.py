"""Clients that come and go: the Markov chain's laws, and recorded intervals by hand."""

import numpy as np
import pytest

from fedlane.network.availability import AlwaysPresent, MarkovAvailability
from fedlane.network.presence_traces import RecordedAvailability, load_presence
from fedlane.validate import InputError

ON_S, OFF_S = 300.0, 100.0
CLIENTS = 20_000


@pytest.fixture(scope="module")
def churn():
    return MarkovAvailability(range(20), CLIENTS // 20, ON_S, OFF_S)


@pytest.mark.parametrize("clock_s", [0.0, 1.0, 12_345.6, 7e8])
def test_the_share_of_present_clients_is_the_long_run_share_at_every_instant(churn, clock_s):
    """20,000 independent clients: standard error sqrt(0.75 x 0.25 / 20000)."""
    assert churn.present_share == 0.75
    share = churn.present(np.full(20, clock_s)).mean()
    assert share == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / CLIENTS) ** 0.5)


def test_a_single_client_is_present_its_long_run_share_of_the_time():
    """Over n = 4,000 instants 50 s apart, the states' correlation is rho = exp(-50 / 75), which widens the error."""
    states = MarkovAvailability([3] * 4000, 1, ON_S, OFF_S).present(50.0 * np.arange(4000))  # one seed at many clocks
    rho = np.exp(-50 * (1 / ON_S + 1 / OFF_S))
    error = (0.75 * 0.25 / 4000 * (1 + rho) / (1 - rho)) ** 0.5
    assert np.mean(states) == pytest.approx(0.75, abs=4 * error)


@pytest.mark.parametrize("lag_s", [1.0, 30.0, 75.0, 400.0])
def test_the_autocorrelation_is_that_of_the_chain(churn, lag_s):
    """P(on at t + s | on at t) = 0.75 + 0.25 exp(-s (1 / 300 + 1 / 100))."""
    now, later = churn.present(np.full(20, 5000.0)), churn.present(np.full(20, 5000.0 + lag_s))
    stay = 0.75 + 0.25 * np.exp(-lag_s * (1 / ON_S + 1 / OFF_S))
    assert later[now].mean() == pytest.approx(stay, abs=4 * (stay * (1 - stay) / now.sum()) ** 0.5)


@pytest.mark.parametrize("lasts_s", [5.0, 60.0, 300.0, 1500.0])
def test_presence_lasts_an_exponential_time(churn, lasts_s):
    """P(leaves within s | present) = 1 - exp(-s / 300), from any instant; an absent client cannot leave."""
    start_s = np.full(20, 777.0)
    left = churn.leaves(start_s, np.full((20, CLIENTS // 20), 777.0 + lasts_s))
    present = churn.present(start_s)
    assert not left[~present].any()
    probability = 1 - np.exp(-lasts_s / ON_S)
    assert left[present].mean() == pytest.approx(
        probability, abs=4 * (probability * (1 - probability) / present.sum()) ** 0.5 + 1e-9
    )


def test_leaving_agrees_with_the_states_in_between():
    """A client that leaves in an interval is absent at some instant of a fine grid, unless it was away only briefly."""
    chain, grid = MarkovAvailability([5], 200, 30.0, 20.0), np.linspace(100.0, 140.0, 1001)
    states = MarkovAvailability([5] * 1001, 200, 30.0, 20.0).present(grid)
    start, end = np.array([100.0]), np.full((1, 200), 140.0)
    left = chain.leaves(start, end)[0]
    absent = states[0] & ~states.all(axis=0)
    assert not np.any(absent & ~left)
    # An absence shorter than the grid's 0.04 s may be missed: probability at most 0.04 / 20 for each of about 90.
    assert np.sum(left & ~absent) <= 3
    assert left.sum() > 50
    earlier = chain.leaves(start, np.full((1, 200), 120.0))[0]
    assert not np.any(earlier & ~left)  # who has left by 120 s has left by 140 s


def test_an_end_may_be_infinite_missing_or_the_start():
    chain = MarkovAvailability([5], 50, 30.0, 20.0)
    start = np.array([10.0])
    present = chain.present(start)
    np.testing.assert_array_equal(chain.leaves(start, np.full((1, 50), np.inf)), present)
    for end in (np.nan, 10.0, 3.0):
        assert not chain.leaves(start, np.full((1, 50), end)).any()


def test_clocks_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    together, rng = MarkovAvailability(range(50), 6, ON_S, OFF_S), np.random.default_rng(0)
    clocks = rng.uniform(0, 1e7, (20, 50))
    in_order = [together.present(clock_s) for clock_s in clocks]
    for t in rng.permutation(20):
        np.testing.assert_array_equal(together.present(clocks[t]), in_order[t])
        alone = MarkovAvailability([7], 4, ON_S, OFF_S).present(clocks[t, 7:8])
        np.testing.assert_array_equal(alone[0], in_order[t][7, :4])
        ends = clocks[t][:, None] + rng.uniform(0, 900, (50, 6))
        left = together.leaves(clocks[t], ends)
        np.testing.assert_array_equal(
            MarkovAvailability([7], 6, ON_S, OFF_S).leaves(clocks[t, 7:8], ends[7:8])[0], left[7]
        )
    np.testing.assert_array_equal(together.present(np.repeat(clocks[0][:, None], 6, axis=1)), in_order[0])
    assert len(np.unique(np.stack(in_order).reshape(20, -1), axis=1).T) > 200  # clients differ


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_mean_times_are_positive_numbers(wrong):
    with pytest.raises(InputError, match=r"availability\.mean_on_s must be between 0\.001 and 1e12, got"):
        MarkovAvailability([0], 1, wrong, 1.0)
    with pytest.raises(InputError, match=r"availability\.mean_off_s must"):
        MarkovAvailability([0], 1, 1.0, wrong)


def test_clients_that_are_always_present():
    always = AlwaysPresent(2, 3)
    assert always.present(np.zeros(2)).all()
    assert not always.leaves(np.zeros(2), np.full((2, 3), np.inf)).any()


RECORDED = [np.array([[10.0, 20.0], [30.0, 40.0]]), np.array([[0.0, 5.0], [80.0, 100.0]]), np.array([[0.0, 100.0]])]
"""Three recorded clients; the recording ends at 100 s."""


def test_recorded_presence_at_hand_computed_instants():
    recorded = RecordedAvailability([4], 3, RECORDED)
    order = np.argsort(recorded._recorded[0])  # the client that plays each recorded one
    assert sorted(recorded._recorded[0]) == [0, 1, 2]
    for clock_s, expected in (
        (0.0, [False, True, True]),
        (10.0, [True, False, True]),
        (19.99, [True, False, True]),
        (20.0, [False, False, True]),
        (85.0, [False, True, True]),
        (104.0, [False, True, True]),  # 4 s after the recording begins again
        (1035.0, [True, False, True]),
    ):
        assert recorded.present(np.array([clock_s]))[0, order].tolist() == expected, clock_s
    for start_s, end_s, expected in (
        (12.0, 19.0, [False, False, False]),
        (12.0, 20.0, [True, False, False]),  # absent from 20 s on
        (85.0, 104.9, [False, False, False]),  # from 80 s to 5 s after the beginning: one stay of 25 s
        (85.0, 105.0, [False, True, False]),
        (12.0, np.inf, [True, False, False]),
        (12.0, np.nan, [False, False, False]),
    ):
        left = recorded.leaves(np.array([start_s]), np.full((1, 3), end_s))
        assert left[0, order].tolist() == expected, (start_s, end_s)


def test_recorded_clients_are_dealt_by_the_seed():
    many = RecordedAvailability(range(40), 7, RECORDED)
    clock_s = np.random.default_rng(0).uniform(0, 1e5, 40)
    np.testing.assert_array_equal(
        RecordedAvailability([7], 7, RECORDED).present(clock_s[7:8])[0], many.present(clock_s)[7]
    )
    assert len(np.unique(many._recorded, axis=0)) > 10
    assert all(sorted(row[:3]) == [0, 1, 2] for row in many._recorded)


def test_a_table_of_presence_is_read_and_its_intervals_joined(tmp_path):
    path = tmp_path / "presence.csv"
    path.write_text("client,start_s,end_s\nanna,50,60\nbert,0,5\nanna,0,10\nanna,8,12\nanna,12,20\n")
    anna, bert = load_presence(str(path))
    np.testing.assert_array_equal(anna, [[0, 20], [50, 60]])
    np.testing.assert_array_equal(bert, [[0, 5]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,start_s\na,1\n", "must have the columns client, start_s, end_s"),
        ("client,start_s,end_s\n", "it has no rows"),
        ("client,start_s,end_s\na,5,5\n", "row 1 must have 0 <= start_s < end_s, got 5 and 5"),
        ("client,start_s,end_s\na,0,1\na,5,2\n", "row 2 must have"),
        ("client,start_s,end_s\na,-5,2\n", "row 1 must have"),
        ("client,start_s,end_s\na,nan,2\n", "row 1 must have"),
        ("client,start_s,end_s\na,0,inf\n", "row 1 must have"),
        ("client,start_s,end_s\na,0\n", "row 1 must hold two numbers"),
        ("client,start_s,end_s\na,x,y\n", "row 1 must hold two numbers"),
        ("", "it is empty"),
    ],
)
def test_a_hostile_table_of_presence_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "presence.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_presence(str(path))
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="does not exist"):
        load_presence("nothing.csv")
