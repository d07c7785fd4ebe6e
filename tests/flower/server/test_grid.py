"""Deadlines and arrival times: with real nodes, by the order of events, and exactly on a clock that a test moves."""

import json
import logging
import threading
import time

import flwr
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedlane.flower import _adapted
from fedlane.flower.server import grid
from fedlane.flower.server.grid import AFTER_TTL_S, POLL_S, Post, _arrival, dispatch, exchange

ROUNDS = 2


@pytest.fixture(scope="module")
def echoes(tmp_path_factory, shared_federation):
    """Let three nodes return 1 MB each, in rounds with time enough and in one whose deadline comes earlier.

    Returns:
        What the server recorded of each round, and when each node began to upload each object.
    """
    federation, out = shared_federation.ready(), tmp_path_factory.mktemp("echo") / "out.json"
    run = federation.run("echo", {"nodes": 3, "rounds": ROUNDS, "late-rounds": 1, "deadline": 1.0, "out": str(out)})
    run.wait(400)
    assert out.exists(), run.log()
    return json.loads(out.read_text()), [list(relay.begun_s) for relay in federation.relays]


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_reply_is_stamped_after_it_has_left_its_node_and_before_its_round_ends(echoes):
    rounds, begun_s = echoes
    for played in rounds[:ROUNDS]:
        for arrival in played["arrivals"]:
            sent_s = [at for at in begun_s[arrival["node"]] if arrival["sent"] < at < played["ended"]]
            assert len(sent_s) > 1  # the array and its chunks
            times = [played["began"], arrival["sent"], arrival["trained"], *sent_s, arrival["arrived"], played["ended"]]
            assert times == sorted(times)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_round_never_ends_before_its_deadline_while_nodes_still_work(echoes):
    played = echoes[0][-1]
    assert played["ended"] - played["began"] >= played["deadline"]
    assert {arrival["reason"] for arrival in played["arrivals"]} == {"no answer by the deadline"}
    assert {arrival["arrived"] for arrival in played["arrivals"]} == {None}


class Broken:
    """A grid that cannot send."""

    def push_messages(self, messages):
        raise RuntimeError("no route")


def message(node=1, ttl=5.0):
    return Message(
        RecordDict({"config": ConfigRecord({"a": node})}), dst_node_id=node, message_type=MessageType.TRAIN, ttl=ttl
    )


class Away:
    """A grid that does not finish sending, as when SuperLink is away, until it is released."""

    def __init__(self):
        self.released = threading.Event()

    def push_messages(self, messages):
        self.released.wait(60)
        return []


def test_the_deadline_holds_while_superlink_is_away():
    away, began = Away(), time.monotonic()
    (arrival,) = exchange(away, [message()], 0.1)
    assert time.monotonic() - began >= 0.1
    assert not away.released.is_set()  # so the round has not waited for it
    assert arrival.reply is None
    assert arrival.delay_s is None
    assert not arrival.post.settled
    away.released.set()
    assert arrival.post.wait(300)
    assert arrival.post.reason == "SuperLink did not accept the message"


class Clock:
    """A clock that moves only by `sleep`."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that the grid's functions read and wait by."""
    clock = Clock()
    monkeypatch.setattr(grid, "time", clock)
    monkeypatch.setattr(_adapted, "time", clock)
    return clock


def test_a_round_ends_exactly_at_its_deadline_or_with_its_last_reply(monkeypatch, clock):
    """A reply at the deadline is in time, a later one is not; the wait is for what is left, not anew for each node."""
    answered_s = {}

    def wait(post, seconds):
        """Let the clock move until a reply arrives or the time is over, and settle what has arrived by then."""
        assert seconds >= 0
        clock.sleep(min(seconds, max(answered_s[post.node_id] - clock.now_s, 0.0)))
        if clock.now_s >= answered_s[post.node_id]:
            post._settle(Message(RecordDict({}), reply_to=post.message), arrived_s=answered_s[post.node_id])

    def sent(grid, messages):
        posts = [Post(message) for message in messages]
        for post, message in zip(posts, messages, strict=True):
            message.metadata.__dict__["_message_id"], post.message = "1", message
        return posts

    monkeypatch.setattr(grid, "dispatch", sent)
    monkeypatch.setattr(Post, "wait", wait)
    for answers, delays, ended_s in (
        ([1.0, 2.5, 0.5], [1.0, 2.5, 0.5], 2.5),
        ([1.0, 4.0, 3.0], [1.0, 4.0, 3.0], 4.0),
        ([4.5, 1.0, 9.0], [None, 1.0, None], 4.0),
    ):
        clock.now_s = 0.0
        answered_s.update(enumerate(answers))
        arrivals = exchange(None, [message(node) for node in range(3)], 4.0)
        assert [arrival.delay_s for arrival in arrivals] == delays
        assert clock.now_s == ended_s


class Answering:
    """A grid whose reply is there at some time; it counts the polls."""

    def __init__(self, clock, answer_s):
        self.clock, self.answer_s, self.polled_s = clock, answer_s, []

    def push_messages(self, messages):
        messages[0].metadata.__dict__["_message_id"] = "1"
        self.message = messages[0]
        return ["1"]

    def pull_messages(self, message_ids):
        assert message_ids == ["1"]
        self.polled_s.append(self.clock.now_s)
        return [Message(RecordDict({}), reply_to=self.message)] if self.clock.now_s >= self.answer_s else []


@pytest.mark.parametrize("answer_s", [0.0, 0.12, 1.03])
def test_replies_are_polled_for_every_50_ms_until_they_are_there(clock, answer_s):
    asked, answering = message(), Answering(clock, answer_s)
    post = Post(asked)
    grid._send(answering, [asked], [post])
    assert post.wait(300)
    assert POLL_S == 0.05
    polls = int(np.ceil(answer_s / POLL_S)) + 1
    np.testing.assert_allclose(answering.polled_s, POLL_S * np.arange(polls), atol=1e-9)
    assert 0 <= post.arrived_s - answering.polled_s[-1] <= POLL_S + 1e-9  # the poller moves the clock once more


def test_polling_ends_soon_after_a_message_has_expired(clock):
    asked, answering = message(ttl=5.0), Answering(clock, np.inf)
    post = Post(asked)
    grid._send(answering, [asked], [post])
    assert post.reason == "no answer within its time to live"
    assert answering.polled_s[-1] == pytest.approx(5.0 + AFTER_TTL_S, abs=2 * POLL_S)


def test_a_reply_a_moment_after_the_deadline_is_late():
    sent = message()
    sent.metadata.__dict__["_message_id"] = "1"
    post = Post(sent)
    post._settle(Message(RecordDict({}), reply_to=sent))
    assert _arrival(post, post.arrived_s).reply is post.reply
    late = _arrival(post, post.arrived_s - 1e-6)
    assert late.reply is None
    assert late.delay_s is None
    assert late.reason == "no answer by the deadline"


def test_a_message_that_cannot_be_sent_fails_at_once():
    (arrival,) = exchange(Broken(), [message()], 5.0)
    assert arrival.reason == "could not be sent: no route"
    assert arrival.post.settled
    assert dispatch(Broken(), []) == []


def test_the_adaptation_fits_the_installed_flwr(monkeypatch, caplog):
    """Flower's own code with other waits, while Flower is unchanged; an untested version only causes a warning."""
    from flwr.superlink.grid import http_grid

    original, objects = http_grid.HttpGrid.pull_messages, http_grid.pull_objects
    _adapted._adapt.cache_clear()
    adapted = _adapted._adapt(original, objects)
    assert adapted.__code__ is original.__code__
    assert adapted.__globals__["pull_objects"] is _adapted.fetch_objects
    assert http_grid.pull_objects is objects
    assert not caplog.records
    _adapted._adapt.cache_clear()
    monkeypatch.setattr(flwr, "__version__", "1.99.0")
    with caplog.at_level(logging.WARNING, "fedlane.flower"):
        assert _adapted._adapt(original, objects) is None
    assert "1.99.0" in caplog.text
    _adapted._adapt.cache_clear()


def test_objects_are_fetched_as_they_arrive(clock):
    """Objects that have arrived do not wait for the others, and each is fetched once."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

    fetched = []
    arrival_s = {name: 0.1 * (number // 3) for number, name in enumerate("abcdefgh")}

    def pull(name):
        if clock.now_s < arrival_s[name]:
            raise ObjectUnavailableError(name)
        fetched.append((name, clock.now_s))
        return name.encode()

    names = list("hgfedcba")
    assert _adapted.fetch_objects(names, pull) == {name: name.encode() for name in names}
    assert sorted(name for name, _ in fetched) == sorted(names)
    late = [when - arrival_s[name] for name, when in fetched]
    assert max(late) < 0.1, fetched


def test_fetching_a_reply_is_limited_in_time_and_size(monkeypatch, clock):
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    def never(name):
        raise ObjectUnavailableError(name)

    monkeypatch.setattr(_adapted._fetching, "until_s", 0.2)
    with pytest.raises(ObjectPullError, match="it did not arrive in time"):
        _adapted.fetch_objects(["a"], never)
    assert 0.2 < clock.now_s <= 0.2 + 2 * _adapted.WAIT_S
    monkeypatch.setattr(_adapted._fetching, "until_s", 60.0)
    monkeypatch.setattr(_adapted._fetching, "max_bytes", 1000.0)
    assert len(_adapted.fetch_objects(["a", "b"], lambda name: bytes(500))) == 2
    with pytest.raises(ObjectPullError, match="larger than 1000 bytes"):
        _adapted.fetch_objects(["a", "b", "c"], lambda name: bytes(500))


def as_object(kind, children, body):
    """Return the id and the content of an object, in Flower's format."""
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
    return get_object_id(content), content


def array_object(children, chunks):
    metadata = {"dtype": "float32", "shape": [25_000], "stype": "numpy.ndarray", "arraychunk_ids": chunks}
    return as_object("Array", children, json.dumps(metadata).encode())


def test_a_small_reply_does_not_become_a_large_one(monkeypatch):
    """A chunk of 100 kB that is named 700 times, by one array or by many, or through an array of arrays."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents

    monkeypatch.setattr(_adapted._fetching, "max_bytes", 1e6)
    chunk = as_object("ArrayChunk", [], bytes(100_000))
    nine = array_object([chunk[0]], [0] * 9)
    honest = dict([chunk, nine])
    assert _adapted.fetch_objects(list(honest), honest.__getitem__) == honest
    assert len(inflate_object_from_contents(nine[0], dict(honest)).data) == 900_000
    attacks = {
        "one array": [chunk, array_object([chunk[0]], [0] * 700)],
        "many arrays": [chunk, *(array_object([chunk[0]], [0] * 9 + [-1] * k) for k in range(3))],
        "an array of arrays": [chunk, nine, array_object([nine[0]], [0] * 2)],
        "a missing chunk": [array_object([chunk[0]], [0])],
        "numbers that are none": [chunk, array_object([chunk[0]], [None])],
        "no list": [chunk, array_object([chunk[0]], 7)],
        "no JSON": [as_object("Array", [], b"[" * 100_000)],
    }
    for objects in attacks.values():
        contents = dict(objects)
        with pytest.raises(ObjectPullError, match=r"more than 1000000|is malformed"):
            _adapted.fetch_objects(list(contents), contents.__getitem__)
