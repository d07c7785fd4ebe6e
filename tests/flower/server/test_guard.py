"""Each rule of the guard refuses what it should and accepts honest updates."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedlane.flower.protocol import KEY, Report
from fedlane.flower.server.guard import Dropped, Guard, why_refused
from fedlane.flower.server.metrics import common_metrics
from fedlane.learning.system_random import check_global_model
from fedlane.validate import LARGEST_WEIGHT, InputError
from support.wire_records import order, report

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float64)}


def content(model=None, reported=None, metrics=None, **more):
    values = {name: array + array.dtype.type(0.1) for name, array in MODEL.items()} if model is None else model
    return RecordDict(
        {
            KEY: (reported or report()).record(),
            "arrays": ArrayRecord({name: Array(array) for name, array in values.items()}),
            "metrics": MetricRecord({"num-examples": 100} if metrics is None else metrics),
            **more,
        }
    )


def checked(reply, guard=None, client="c0", clients=1, size=100.0):
    """The guard after it has accepted a reply."""
    guard = guard or Guard()
    update = guard.inspect(reply, guard.report(reply, order(client)), MODEL, size)
    (reason,) = guard.judge([update], MODEL, clients)
    if reason:
        raise Dropped(reason)
    return guard


def test_an_honest_update_passes():
    assert list(checked(content()).bounds.totals.values()) == [pytest.approx(0.1 * np.sqrt(8), rel=1e-5)]


def bad(name, value):
    return content({**{n: a.copy() for n, a in MODEL.items()}, name: value})


nan, inf = MODEL["w"].copy(), MODEL["b"].copy()
nan[1, 2], inf[0] = np.nan, -np.inf
lying = content()
lying["arrays"]["w"] = Array("float32", (2, 3), "numpy.ndarray", Array(np.zeros((3, 2), np.float32)).data)
pickled = content()
pickled["arrays"]["w"] = Array("float32", (2, 3), "pickle", b"cos\nsystem\n(S'true'\ntR.")
archive, zipped = content(), io.BytesIO()
np.savez(zipped, w=MODEL["w"])
archive["arrays"]["w"] = Array("float32", (2, 3), "numpy.ndarray", zipped.getvalue())
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
        (bad("w", MODEL["w"] * np.float32(1e30)), "'w' has weights above 1000"),
        (bad("b", MODEL["b"] - 1000.5), "'b' has weights above 1000"),
        (bad("w", MODEL["w"] + np.float32(300)), "norm in array 'w', 734.8, is above"),
        (bad("b", MODEL["b"] + 3), "norm in array 'b', 4.243, is above"),
        (lying, "not as announced"),
        (pickled, "cannot be read"),
        (rubbish, "cannot be read"),
        (archive, "cannot be read: it is a NpzFile"),
        (content(metrics={}), "num-examples must be"),
        (content(metrics={"num-examples": 0}), "num-examples must be"),
        (content(metrics={"num-examples": float("nan")}), "num-examples must be"),
        (content(metrics={"num-examples": 10**9}), "num-examples must be"),
        (content(metrics={"num-examples": [1, 2]}), "num-examples must be"),
        (content(second=MetricRecord({"a": 1})), "exactly one MetricRecord"),
        (content(second=ArrayRecord({"a": Array(np.zeros(1))})), "exactly one ArrayRecord"),
        (content(reported=report("c1")), "client 'c1', the order was for client 'c0'"),
        (content(reported=report(round=2)), "round 2"),
        (content(reported=report(lane=0)), "lane 0"),
        (content(reported=report(status="refused", reason="budget is spent")), "refused: budget is spent"),
        (content(reported=report(status="failed", reason="lane 2: no route")), "failed: lane 2: no route"),
        (RecordDict({}), "carries no Report"),
        (RecordDict({KEY: ConfigRecord({"kind": "Report", "version": 1})}), "Report.client"),
    ],
)
def test_a_bad_reply_is_dropped(reply, reason):
    guard = Guard()
    with pytest.raises(Dropped, match=reason):
        checked(reply, guard, clients=3)
    assert "norm" in reason or guard.bounds.totals == {}


def send_update(client, length, guard, clients=3):
    """Let the guard check a client's update of some norm."""
    moved = {**MODEL, "w": MODEL["w"] + np.float32(length / np.sqrt(6))}
    return checked(content(moved, report(client)), guard, client, clients)


def bound(guard, clients=3):
    return guard.bounds.limits(MODEL, clients).total


def test_a_client_with_tiny_updates_does_not_shut_out_the_others():
    guard = Guard()
    for _ in range(20):
        for length in (0.0, 1e-6):
            send_update("still", length, guard, clients=2)
            send_update("honest", 0.5, guard, clients=2)


def test_the_bound_follows_when_most_updates_grow_but_not_one_alone():
    guard = Guard()
    for client in ("a", "b", "c") * 3:
        send_update(client, 0.5, guard)
    for _ in range(20):
        with pytest.raises(Dropped, match="norm"):
            send_update("c", 400.0, guard)
    assert bound(guard) == pytest.approx(5.0, rel=1e-3)
    with pytest.raises(Dropped, match="norm"):
        send_update("a", 60.0, guard)  # two of three have long updates; each votes for 5 at most
    assert bound(guard) == pytest.approx(50.0, rel=1e-3)
    with pytest.raises(Dropped, match="norm"):
        send_update("b", 60.0, guard)
    send_update("a", 60.0, guard)


def test_the_bound_is_tight_from_the_start():
    """Before most of the clients have voted it is at most the starting bound, and at most 10 times the median of 3."""
    guard, start = Guard(), np.hypot(np.sqrt(55) + np.sqrt(6), np.sqrt(2))
    assert bound(guard, 9) == pytest.approx(start)
    send_update("hostile", 9.8, guard, 9)
    send_update("a", 0.5, guard, 9)
    assert bound(guard, 9) == pytest.approx(start)
    send_update("b", 0.5, guard, 9)
    assert bound(guard, 9) == pytest.approx(5.0, rel=1e-3)
    for client in "xyz":  # liars that come before the honest majority do not pass the starting bound
        with pytest.raises(Dropped):
            send_update(client, 90.0, guard, 99)
    assert bound(guard, 99) <= start * (1 + 1e-12)
    assert Guard(0.01).bounds.limits(MODEL, 9).total == 0.01
    with pytest.raises(Dropped, match=r"norm 0\.2828 is above 0\.01"):
        checked(content(), Guard(0.01))


@pytest.mark.parametrize(("liars", "clients"), [(1, 3), (2, 5), (2, 6), (3, 7), (4, 9)])
def test_a_minority_that_votes_first_does_not_raise_the_bound(liars, clients):
    """The liars vote in every round; the others join one by one, so that most of the first voters are liars."""
    guard, start = Guard(), np.hypot(np.sqrt(55) + np.sqrt(6), np.sqrt(2))
    names = [f"liar{k}" for k in range(liars)] + [f"h{k}" for k in range(clients - liars)]
    for voters in range(1, clients + 1):
        updates = []
        for name in names[:voters]:
            moved = {key: array + np.float32(40 if name.startswith("liar") else 0.3) for key, array in MODEL.items()}
            reply = content(moved, report(name))
            updates.append(guard.inspect(reply, Report.read(reply), MODEL, 100.0))
        reasons = guard.judge(updates, MODEL, clients)
        assert all(reasons[:liars])
        assert reasons[liars:] == [""] * (voters - liars if voters > liars else 0)
        assert bound(guard, clients) <= start * (1 + 1e-12)
        assert all(limit <= 12 for limit in guard.bounds.limits(MODEL, clients).arrays.values())
    assert bound(guard, clients) == pytest.approx(10 * 0.3 * np.sqrt(8), rel=1e-3)


def test_a_large_change_of_a_small_array_is_not_hidden_in_the_total():
    model = {"large": np.zeros(10_000, np.float32), "small": np.zeros(2, np.float32), "n": np.zeros(1, np.int64)}
    guard, rng = Guard(), np.random.default_rng(0)

    def update(client, small, n=5):
        moved = {
            "large": rng.normal(size=10_000).astype(np.float32),
            "small": np.float32([small, 0.1]),
            "n": np.array([n]),
        }
        reply = content(moved, report(client))
        return guard.inspect(reply, Report.read(reply), model, 100.0)

    honest = [update(client, 0.1) for client in "abcd"]
    assert guard.judge([*honest, update("hostile", 90.0)], model, 5)[:4] == [""] * 4
    (reason,) = guard.judge([update("hostile", 90.0)], model, 5)
    assert "norm in array 'small', 90, is above" in reason
    (reason,) = guard.judge([update("hostile", 0.1, n=10**9)], model, 5)
    assert "norm in array 'n'" in reason


@pytest.mark.parametrize("claims", [[10, 10**6], [10, 20, 10**6, 15, 30], [7, 7, 7, 10**6, 10**6]])
def test_a_claimed_size_cannot_decide_the_average(claims):
    guard, updates = Guard(), []
    for client, examples in enumerate(claims):
        reply = content(reported=report(f"c{client}"), metrics={"num-examples": examples})
        updates.append(guard.inspect(reply, Report.read(reply), MODEL, 10.0**9))
    assert guard.judge(updates, MODEL, len(claims)) == [""] * len(claims)
    used = [update.content["metrics"]["num-examples"] for update in updates]
    honest = sorted(claims)[(len(claims) - 1) // 2]
    assert used == [min(claim, 3 * honest) for claim in claims]


def test_what_the_guard_remembers_is_restored_and_older_checkpoints_open():
    guard = checked(content(), Guard())
    again = Guard()
    again.restore(guard.values())
    assert again.values() == guard.values()
    again.restore({"norms": {"a": 0.5, "b": 0.5, "c": 0.7}, "updates_seen": 9})  # an earlier version
    assert bound(again) == 5.0
    send_update("a", 0.5, again)


@pytest.mark.parametrize(
    "value", [0.0, -3.0, 999.9, 1000.0, np.nextafter(np.float32(1000), np.inf), -1e4, np.inf, np.nan]
)
def test_the_server_and_its_clients_have_the_same_rule_for_a_model(value):
    weights = np.zeros(4, np.float32)
    weights[2] = value
    try:
        check_global_model(torch.from_numpy(weights)[None])
        refused = ""
    except InputError as error:
        refused = str(error)
    reason = why_refused({"w": weights, "n": np.array([10**9])}, LARGEST_WEIGHT)
    assert bool(reason) == bool(refused)
    assert reason in refused


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
    assert [dict(record) for record in common_metrics([first, second])] == [{"num-examples": 10}, {"num-examples": 30}]
    assert common_metrics([]) == []


def test_the_claim_of_a_refused_update_does_not_count():
    """Three refused clients claim one example each; the honest client's 90 are not cut down to three times that."""
    guard, honest = Guard(max_update_norm=1.0), report("h")
    refused = {name: array + array.dtype.type(9.0) for name, array in MODEL.items()}
    replies = [content(refused, report(f"a{k}"), {"num-examples": 1}) for k in range(3)]
    replies.append(content(reported=honest, metrics={"num-examples": 90}))
    updates = [guard.inspect(reply, Report.read(reply), MODEL, 100.0) for reply in replies]
    reasons = guard.judge(updates, MODEL, 4)
    assert [bool(reason) for reason in reasons] == [True, True, True, False]
    assert replies[-1]["metrics"]["num-examples"] == 90
    assert set(guard.claims) == {"h"}
