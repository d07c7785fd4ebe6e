"""Transfers over measured rates: ends computed by hand, against an exact scan, and for many clients at once."""

from fractions import Fraction

import numpy as np
import pytest

from fedlane.network.trace_links import CHANNEL_FACTORS, TraceReplay
from fedlane.network.traces import RateTrace, RateTraces
from fedlane.validate import InputError


def trace(edges_s, rates_bps, name="hand", direction="down"):
    return RateTrace(name, direction, np.array(edges_s, float), np.array(rates_bps, float))


HAND = trace([0, 1, 3, 4, 6, 7], [4e6, 0, 2e6, 0, 1e6])
"""4 Mbit in the first second, silence until 3 s, 2 Mbit until 4 s, silence until 6 s, 1 Mbit until 7 s: 7 Mbit."""


@pytest.mark.parametrize(
    ("start_s", "megabits", "end_s"),
    [
        (0.0, 2.0, 0.5),  # 4 Mbit/s x 0.5 s
        (0.0, 4.0, 1.0),  # exactly the first second: it does not wait for the end of the silence
        (0.0, 4.5, 3.25),  # 4, silence, then 0.5 of 2 Mbit/s
        (0.5, 3.0, 3.5),  # 2, silence, 1 of 2 Mbit/s
        (1.5, 1.0, 3.5),  # begins in silence
        (0.0, 7.0, 7.0),  # the whole trace
        (0.0, 7.5, 7.125),  # round the end: 0.5 of 4 Mbit/s
        (6.5, 1.0, 7.125),  # 0.5 before the end, 0.5 after it
        (6.5, 14.5, 7 + 7 + 7.0),  # 0.5 + 7 + 7: two laps, and the last bit is the last of the second lap
        (0.25, 7000.0, 7000.25),  # a thousand laps
        (70.5, 3.0, 73.5),  # an instant after ten laps
        (2.0, 0.0, 2.0),  # nothing to send
    ],
)
def test_a_transfer_ends_when_the_integral_of_the_rate_reaches_the_payload(start_s, megabits, end_s):
    lasted_s = RateTraces([HAND]).transfer_s(np.array(0), np.array(start_s), megabits * 1e6)
    assert start_s + lasted_s == pytest.approx(end_s, abs=1e-9)


def scanned_end(rate_trace, start_s, bits):
    """The end of a transfer in exact fractions, interval by interval."""
    edges = [Fraction(float(x)) for x in rate_trace.edges_s - rate_trace.edges_s[0]]
    rates = [Fraction(float(x)) for x in rate_trace.rates_bps]
    left, base, now = Fraction(float(bits)), Fraction(0), Fraction(float(start_s))
    while True:
        for begin, end, rate in zip(edges, edges[1:], rates, strict=False):
            begin, end = base + begin, base + end
            if now < end:
                now = max(now, begin)
                if rate and rate * (end - now) >= left:
                    return float(now + left / rate)
                left -= rate * (end - now)
                now = end
        base += edges[-1]


def test_transfers_equal_an_exact_scan_for_traces_of_all_lengths_at_once():
    rng = np.random.default_rng(0)
    traces = []
    for length in (2, 3, 17, 400):
        rates = rng.choice([0.0, 1e5, 3e6, 7.7e6], length)
        rates[length // 2] = 1e6
        traces.append(trace(np.cumsum(rng.uniform(0.1, 3.0, length + 1)), rates))
    index, start_s = rng.integers(4, size=(30, 5)), rng.uniform(0, 400, (30, 5))
    bits = 10 ** rng.uniform(2, 8.5, (30, 5))
    lasted_s = RateTraces(traces).transfer_s(index, start_s, bits)
    for k in np.ndindex(lasted_s.shape):
        exact = scanned_end(traces[index[k]], start_s[k], bits[k]) - start_s[k]
        assert lasted_s[k] == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_rounding_does_not_carry_a_transfer_over_silence():
    """0.3 s at 1/3 Mbit/s from any start ends before the silence, however the products are rounded."""
    silent = trace([0, 1, 100], [1e6 / 3, 0.0])
    start_s = np.linspace(0.0, 0.69, 1001)
    bits = 1e6 / 3 * (1.0 - start_s)
    np.testing.assert_allclose(RateTraces([silent]).transfer_s(np.zeros(1001, int), start_s, bits), 1.0 - start_s)


def test_the_rate_at_an_instant_repeats_after_the_trace():
    rates = RateTraces([HAND]).rate_bps(np.zeros(4, int), np.array([0.0, 1.0, 3.5, 7 * 5 + 6.5]))
    np.testing.assert_array_equal(rates, [4e6, 0.0, 2e6, 1e6])


@pytest.mark.parametrize(
    ("edges", "rates", "message"),
    [
        ([0, 1], [1.0], "at least two rows"),
        ([0, 1, 2], [0.0, 0.0], "all its rates are 0"),
        ([0, 1, 1], [1.0, 1.0], "its times must increase, but 1 s follows 1 s"),
        ([0, 2, 1], [1.0, 1.0], "its times must increase, but 1 s follows 2 s"),
        ([0, 1, np.nan], [1.0, 1.0], "its times must be finite"),
        ([0, 1, 2], [1.0, -3e6], "between 0 and 1e.07 Mbit/s, got -3 Mbit/s"),
        ([0, 1, 2], [1.0, np.nan], "got nan Mbit/s"),
        ([0, 1, 2], [1.0, np.inf], "got inf Mbit/s"),
    ],
)
def test_a_trace_that_cannot_be_used_is_one_line(edges, rates, message):
    with pytest.raises(InputError, match=message) as error:
        trace(edges, rates, name="walk.csv")
    assert str(error.value).startswith("cannot use the trace walk.csv: ")
    assert "\n" not in str(error.value)


UP = trace([0, 5, 10], [5e5, 1e6], direction="up")
OTHER = trace(np.arange(41), 1e6 * (1 + np.arange(40) % 7), name="other")


def replay(seeds, clients=3, **more):
    return TraceReplay(seeds, clients, 2, [HAND, UP, OTHER], **more)


def test_a_client_s_transfers_follow_its_recording_offset_and_factor():
    links = replay([3], factors=(1.0, 1.0), uplink_share=0.25)
    assert links.recordings == ("hand", "other")
    assert sorted(links.recording[0, :2]) == [0, 1]  # each recording once before any is repeated
    clock_s = np.array([100.0])
    for client in range(3):
        recording = links.recording[0, client]
        down, up = (HAND, UP) if recording == 0 else (OTHER, OTHER)
        offset_s, offset_up_s = links._offset_down_s[0, client], links._offset_up_s[0, client]
        assert (offset_s == offset_up_s) == (recording == 0)  # measured together; else an independent offset
        exact_s = scanned_end(down, 100 + offset_s, 9e6) - 100 - offset_s
        assert links.download_s(clock_s, 9e6)[0, client, 1] == pytest.approx(exact_s, rel=1e-9)
        bits = 9e6 if recording == 0 else 4 * 9e6  # a quarter of the downlink's rate
        exact_s = scanned_end(up, 100 + offset_up_s, bits) - 100 - offset_up_s
        assert links.upload_s(clock_s, 9e6)[0, client, 1] == pytest.approx(exact_s, rel=1e-9)


def test_channels_share_their_client_s_trace_and_differ_by_their_factors():
    links = replay(range(40), clients=50)
    low, high = CHANNEL_FACTORS
    assert low <= links.factor.min() < low + 0.01
    assert high - 0.01 < links.factor.max() <= high
    # 4,000 uniform factors: the mean's standard error is (high - low) / sqrt(12 x 4000)
    assert links.factor.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / (12 * 4000) ** 0.5)
    clock_s, plain = np.full(40, 5.0), replay(range(40), clients=50, factors=(1.0, 1.0))
    for r, i, j in ((0, 0, 0), (7, 30, 1), (39, 49, 1)):
        expected = plain.download_s(clock_s, 6e6 / links.factor[r, i, j])[r, i, j]
        assert links.download_s(clock_s, 6e6)[r, i, j] == pytest.approx(expected, rel=1e-12)


def test_clocks_may_be_asked_for_in_any_order_and_seeds_alone_or_together():
    links, rng = replay(range(20)), np.random.default_rng(1)
    clocks = rng.uniform(0, 1e6, (30, 20))
    channel = rng.integers(-1, 2, (20, 3))
    in_order = [links.upload_s(clock_s, 3e6, channel) for clock_s in clocks]
    for t in rng.permutation(30):
        np.testing.assert_array_equal(links.upload_s(clocks[t], 3e6, channel), in_order[t])
        alone = replay([7]).upload_s(clocks[t, 7:8], 3e6, channel[7:8])
        np.testing.assert_array_equal(alone[0], in_order[t][7])
    every = links.upload_s(clocks[0], 3e6)
    chosen = np.take_along_axis(every, np.maximum(channel, 0)[..., None], 2)[..., 0]
    np.testing.assert_array_equal(chosen, in_order[0])
    each = links.upload_s(np.broadcast_to(clocks[0][:, None], (20, 3)), 3e6)  # a clock of its own for each client
    np.testing.assert_array_equal(each, every)


def test_offsets_are_uniform_over_the_recording():
    links = TraceReplay(range(100), 20, 1, [OTHER])
    share = links._offset_down_s / OTHER.duration_s
    # 2,000 uniform numbers: standard error of the mean 1 / sqrt(12 x 2000)
    assert share.mean() == pytest.approx(0.5, abs=4 / (12 * 2000) ** 0.5)
    assert np.corrcoef(share.ravel(), links._offset_up_s.ravel())[0, 1] == pytest.approx(0.0, abs=4 / 2000**0.5)


def test_a_set_without_downlink_or_share_is_refused():
    with pytest.raises(InputError, match="must contain a downlink"):
        TraceReplay([0], 1, 1, [UP])
    with pytest.raises(InputError, match="uplink_share must be greater than 0"):
        TraceReplay([0], 1, 1, [HAND], uplink_share=0.0)
    with pytest.raises(InputError, match="different names"):
        TraceReplay([0], 1, 1, [HAND, HAND])
    with pytest.raises(InputError, match="at least one trace"):
        RateTraces([])


def test_a_lookup_is_logarithmic_in_the_length_of_the_trace():
    """A trace 1,000 times longer reads ten more values per bisection, not 1,000 times as many."""
    reads = []

    class Counted(np.ndarray):
        def __getitem__(self, index):
            reads.append(np.size(index))
            return np.ndarray.__getitem__(self, index)

    counts = []
    for length in (100, 100_000):
        traces = RateTraces([trace(np.arange(length + 1), 1e6 + np.arange(length))])
        traces._bits, traces._edges_s = traces._bits.view(Counted), traces._edges_s.view(Counted)
        reads.clear()
        traces.transfer_s(np.zeros(8, int), np.linspace(0, 99, 8), 1e9)
        counts.append(sum(reads))
    assert counts[1] <= counts[0] + 2 * 8 * 10
