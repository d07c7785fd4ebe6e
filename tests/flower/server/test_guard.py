"""Each rule of the guard refuses what it should and accepts honest updates."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedlane.flower.protocol import KEY, Order, Report
from fedlane.flower.server.guard import MIN_UPDATES, Dropped, Guard, keep_common_metrics

ORDER = Order("f", "c0", 3, 1, 10.0, 5, 2)
REPORT = Report("c0", 3, 1, "trained", "", 0.4, 0.0, 3, 140, 1.5, 1e-5)
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float64)}


def content(model=None, report=REPORT, metrics=None, **more):
    values = {name: array + array.dtype.type(0.1) for name, array in MODEL.items()} if model is None else model
    return RecordDict(
        {
            KEY: report.record(),
            "arrays": ArrayRecord({name: Array(array) for name, array in values.items()}),
            "metrics": MetricRecord({"num-examples": 100} if metrics is None else metrics),
            **more,
        }
    )


def checked(reply, guard=None):
    """The guard after it has accepted a reply."""
    guard = guard or Guard()
    guard.check(reply, guard.report(reply, ORDER), MODEL, 100.0)
    return guard


def changed(**fields):
    return Report(**{**vars(REPORT), **fields})


def test_an_honest_update_passes():
    assert list(checked(content()).norms.values()) == [pytest.approx(0.1 * np.sqrt(8), rel=1e-5)]


def bad(name, value):
    return content({**{n: a.copy() for n, a in MODEL.items()}, name: value})


nan, inf = MODEL["w"].copy(), MODEL["b"].copy()
nan[1, 2], inf[0] = np.nan, -np.inf
lying = content()
lying["arrays"]["w"] = Array("float32", (2, 3), "numpy.ndarray", Array(np.zeros((3, 2), np.float32)).data)
pickled = content()
pickled["arrays"]["w"] = Array("float32", (2, 3), "pickle", b"cos\nsystem\n(S'true'\ntR.")
rubbish = content()
rubbish["arrays"]["w"] = Array("float32", (2, 3), "numpy.ndarray", b"\x80\x04K\x01.")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (bad("w", nan), "'w' is not finite"),
        (bad("b", inf), "'b' is not finite"),
        (bad("w", MODEL["w"].T.copy()), r"'w' must be \(2, 3\) of float32, got \(3, 2\)"),
        (bad("w", MODEL["w"].astype(np.float64)), "got .* of float64"),
        (bad("extra", np.zeros(1)), "missing: none; unexpected: extra"),
        (content({"w": MODEL["w"]}), "missing: b; unexpected: none"),
        (bad("w", MODEL["w"] * np.float32(1e30)), "norm inf|norm .*e"),
        (bad("w", MODEL["w"] + np.float32(1e4)), "norm .* is above"),
        (lying, "not as announced"),
        (pickled, "cannot be read"),
        (rubbish, "cannot be read"),
        (content(metrics={}), "num-examples must be"),
        (content(metrics={"num-examples": 0}), "num-examples must be"),
        (content(metrics={"num-examples": float("nan")}), "num-examples must be"),
        (content(metrics={"num-examples": 10**9}), "num-examples must be"),
        (content(metrics={"num-examples": [1, 2]}), "num-examples must be"),
        (content(second=MetricRecord({"a": 1})), "exactly one MetricRecord"),
        (content(second=ArrayRecord({"a": Array(np.zeros(1))})), "exactly one ArrayRecord"),
        (content(report=changed(client="c1")), "client 'c1', the order was for client 'c0'"),
        (content(report=changed(round=2)), "round 2"),
        (content(report=changed(lane=0)), "lane 0"),
        (content(report=changed(status="refused", reason="budget is spent")), "refused: budget is spent"),
        (content(report=changed(status="failed", reason="lane 2: no route")), "failed: lane 2: no route"),
        (RecordDict({}), "carries no Report"),
        (RecordDict({KEY: ConfigRecord({"kind": "Report", "version": 1})}), "Report.client"),
    ],
)
def test_a_bad_reply_is_dropped(reply, reason):
    guard = Guard()
    with pytest.raises(Dropped, match=reason):
        checked(reply, guard)
    assert "norm" in reason or guard.norms == {}


def send_update(client, length, guard):
    """Let the guard check a client's update of some norm."""
    moved = {**MODEL, "w": MODEL["w"] + np.float32(length / np.sqrt(6))}
    reply = content(moved, changed(client=client))
    guard.check(reply, guard.report(reply, Order("f", client, 3, 1, 10.0, 5, 2)), MODEL, 100.0)


def test_a_client_with_tiny_updates_does_not_shut_out_the_others():
    guard = Guard()
    for _ in range(20):
        for length in (0.0, 1e-6):
            send_update("still", length, guard)
            send_update("honest", 0.5, guard)


def test_the_bound_follows_when_all_updates_grow_but_not_one_alone():
    guard = Guard()
    for client in ("a", "b", "c") * 3:
        send_update(client, 0.5, guard)
    for _ in range(20):
        with pytest.raises(Dropped, match="norm"):
            send_update("c", 1000.0, guard)
    assert guard.bound(MODEL) == pytest.approx(5.0, rel=1e-3)
    with pytest.raises(Dropped, match="norm"):
        send_update("a", 20.0, guard)
    send_update("b", 20.0, guard)  # now two of three clients have long updates
    send_update("a", 20.0, guard)


def test_the_bound_follows_the_accepted_updates():
    guard = Guard()
    first = 10 * (np.sqrt(55) + np.sqrt(8))
    assert guard.bound(MODEL) == pytest.approx(first)
    for _ in range(MIN_UPDATES):
        checked(content(), guard)
    assert guard.bound(MODEL) == pytest.approx(10 * 0.1 * np.sqrt(8), rel=1e-4)
    with pytest.raises(Dropped, match="norm"):
        checked(bad("w", MODEL["w"] + np.float32(1.3)), guard)
    assert Guard(0.01).bound(MODEL) == 0.01


def test_the_metric_that_the_aggregation_weights_by_is_checked():
    guard = Guard(weight="steps")
    checked(content(metrics={"num-examples": 100, "steps": 7}), guard)
    for steps in (-1e6, float("inf"), 1e9):
        with pytest.raises(Dropped, match="steps must be above 0"):
            checked(content(metrics={"num-examples": 100, "steps": steps}), guard)


@given(
    st.dictionaries(
        st.sampled_from(["num-examples", "loss", "x"]),
        st.floats() | st.integers(-5, 5) | st.lists(st.floats(), max_size=2),
        max_size=3,
    )
)
def test_no_metrics_raise_anything_but_dropped(metrics):
    try:
        checked(content(metrics=metrics))
    except Dropped as reason:
        assert "num-examples" in str(reason)  # noqa: PT017


def test_one_client_s_metrics_cannot_harm_the_others():
    first = content(metrics={"num-examples": 10, "loss": 0.5, "extra": 1.0})
    second = content(metrics={"num-examples": 30, "loss": [1.0, 2.0]})
    keep_common_metrics([first, second])
    assert [dict(reply["metrics"]) for reply in (first, second)] == [{"num-examples": 10}, {"num-examples": 30}]
    keep_common_metrics([])
