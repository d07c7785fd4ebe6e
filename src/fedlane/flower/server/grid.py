"""Exact deadlines and arrival times over a Flower `Grid`.

`Grid.send_and_receive` looks every 3 s and waits for a reply that has begun to arrive, whatever its timeout. Here one
thread asks every 50 ms for all replies of a batch, every reply that begins to arrive is fetched by a thread of its own,
and whoever waits returns at the deadline. A reply that comes later is still read, for what it reports.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedlane.flower._adapted import ReplyClaim, claim
from fedlane.validate import positive

logger = logging.getLogger("fedlane.flower")

POLL_S = 0.05
AFTER_TTL_S = 2.0
"""So long after its time to live a message is still asked about: SuperLink itself says that it has expired."""
LATE_S = 60.0
"""So long after its message's time to live a reply that has begun to arrive is still fetched, for what it reports."""
MOST_TIMES, MORE_BYTES = 2.0, 2.0**24
"""A reply may have so many times the bytes of the arrays that it answers, and so many more: a node is not trusted."""


class Post:
    """A message on its way: sent, and answered, failed or given up. Times are `time.monotonic`."""

    def __init__(self, message: Message) -> None:
        self.node_id = message.metadata.dst_node_id
        self.ttl_s = message.metadata.ttl
        sent = sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
        self.most_bytes = MOST_TIMES * sent + MORE_BYTES
        self.sent_s = time.monotonic()
        self.arrived_s: float | None = None
        """When the reply, or the news that there is none, was here as a whole."""
        self.reply: Message | None = None
        self.reason = "no answer"
        """Why there is no reply."""
        self._settled = threading.Event()

    @property
    def settled(self) -> bool:
        """Whether nothing more can come: answered, failed, or older than its time to live."""
        return self._settled.is_set()

    def wait(self, seconds: float) -> bool:
        return self._settled.wait(seconds)

    def _settle(self, reply: Message | None, reason: str = "", arrived_s: float | None = None) -> None:
        if not self.settled:
            self.arrived_s = time.monotonic() if arrived_s is None else arrived_s
            if reply is not None and reply.has_error():
                self.reason = reply.error.reason or f"error {reply.error.code}"
            else:
                self.reply, self.reason = reply, reason
            self._settled.set()


@dataclass(frozen=True)
class Arrival:
    """What had come of one message by the deadline."""

    node_id: int
    sent_s: float
    arrived_s: float | None
    """Only of a reply that came in time, or of news that none will."""
    reply: Message | None
    reason: str
    """Why there is no reply; empty where there is one."""
    post: Post
    """Where a late reply will be."""

    @property
    def delay_s(self) -> float | None:
        """From sending to having the whole reply; None without one."""
        return None if self.reply is None or self.arrived_s is None else self.arrived_s - self.sent_s


def exchange(grid: Grid, messages: Sequence[Message], deadline_s: float) -> list[Arrival]:
    """Send messages, and return what came by the deadline: at the deadline, or earlier if nothing more can come."""
    positive("deadline_s", deadline_s)
    start = time.monotonic()
    posts = dispatch(grid, messages)
    for post in posts:
        post.wait(max(start + deadline_s - time.monotonic(), 0.0))
    return [_arrival(post, start + deadline_s) for post in posts]


def dispatch(grid: Grid, messages: Sequence[Message]) -> list[Post]:
    """Send messages and return at once; their posts are settled as replies come."""
    posts = [Post(message) for message in messages]
    if posts:  # pushing may block for as long as SuperLink is away, so it is nobody's wait but the thread's
        threading.Thread(target=_send, args=(grid, messages, posts), name="fedlane-send", daemon=True).start()
    return posts


def _arrival(post: Post, deadline: float) -> Arrival:
    """The post as it stood at the deadline: a reply that was read a moment too late is late."""
    known, arrived_s, reply, reason = post.settled, post.arrived_s, post.reply, post.reason
    if known and arrived_s is not None and arrived_s <= deadline:
        return Arrival(post.node_id, post.sent_s, arrived_s, reply, reason, post)
    return Arrival(post.node_id, post.sent_s, None, None, "no answer by the deadline", post)


def _send(grid: Grid, messages: Sequence[Message], posts: list[Post]) -> None:
    """Push all messages in one call, which sends what they share once, and start to ask for the replies."""
    try:
        taken = set(grid.push_messages(messages))
    except BaseException as error:  # Flower raises many kinds, and none of them may end the round
        for post in posts:
            post._settle(None, f"could not be sent: {error or type(error).__name__}")
        return
    waiting: dict[str, Post] = {}
    for message, post in zip(messages, posts, strict=True):
        if message.metadata.message_id in taken:
            waiting[message.metadata.message_id] = post
        else:
            post._settle(None, "SuperLink did not take the message")
    _ask(grid, waiting)


def _ask(grid: Grid, waiting: dict[str, Post]) -> None:
    """Ask for replies until all have begun to arrive or are too old."""
    while waiting:
        began = time.monotonic()
        try:
            claims = claim(grid, list(waiting))
        except BaseException as error:  # the run was stopped, or SuperLink has gone for good
            for post in waiting.values():
                post._settle(None, f"could not be asked for: {error or type(error).__name__}")
            return
        for one in claims:
            if one.reply_to in waiting:
                post = waiting.pop(one.reply_to)
                threading.Thread(target=_fetch, args=(one, post), name="fedlane-fetch", daemon=True).start()
        for message_id, post in list(waiting.items()):
            if time.monotonic() > post.sent_s + post.ttl_s + AFTER_TTL_S:
                waiting.pop(message_id)._settle(None, "no answer within its time to live")
        time.sleep(max(began + POLL_S - time.monotonic(), POLL_S / 5))


def _fetch(one: ReplyClaim, post: Post) -> None:
    try:
        reply, arrived_s = one.fetch(post.sent_s + post.ttl_s + LATE_S, post.most_bytes)
        post._settle(reply, arrived_s=arrived_s)
    except BaseException as error:
        post._settle(None, f"could not be fetched: {error or type(error).__name__}")
