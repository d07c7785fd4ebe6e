"""Exact deadlines and arrival times over a Flower `Grid`.

`Grid.send_and_receive` polls every 3 s and waits for a reply that has begun to arrive, regardless of its timeout. Here
one thread polls every 50 ms for all replies of a batch, a separate thread fetches each reply that begins to arrive, and
the caller returns at the deadline. A later reply is still fetched, because its report is needed.
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
"""Polling for a reply ends this long after its message has expired; SuperLink itself reports the expiry."""
LATE_S = 60.0
"""Fetching a reply that has begun to arrive ends this long after its message has expired."""
REPLY_FACTOR, REPLY_EXTRA_BYTES = 2.0, 2.0**24
"""Limit on a reply: this multiple of the bytes of the arrays sent, plus the extra, because nodes are not trusted."""


class Post:
    """A sent message, which is settled once it is answered, has failed or has expired. Times are `time.monotonic`."""

    def __init__(self, message: Message) -> None:
        self.node_id = message.metadata.dst_node_id
        self.ttl_s = message.metadata.ttl
        sent = sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
        self.max_bytes = REPLY_FACTOR * sent + REPLY_EXTRA_BYTES
        self.sent_s = time.monotonic()
        self.arrived_s: float | None = None
        """When the whole reply had arrived, or it was clear that none would arrive."""
        self.reply: Message | None = None
        self.reason = "no answer"
        """Why there is no reply."""
        self._settled = threading.Event()

    @property
    def settled(self) -> bool:
        """Whether nothing more can arrive: the message was answered, has failed or has expired."""
        return self._settled.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the message is settled, for at most ``seconds``; return whether it is."""
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
    """The outcome of one message at the deadline."""

    node_id: int
    sent_s: float
    arrived_s: float | None
    """None unless the message was settled by the deadline."""
    reply: Message | None
    reason: str
    """Why there is no reply; empty if there is one."""
    post: Post
    """The message, which will hold a late reply."""

    @property
    def delay_s(self) -> float | None:
        """Seconds from sending to receiving the whole reply; None without one."""
        return None if self.reply is None or self.arrived_s is None else self.arrived_s - self.sent_s


def exchange(grid: Grid, messages: Sequence[Message], deadline_s: float) -> list[Arrival]:
    """Send messages and return their outcomes, at the deadline or as soon as nothing more can arrive."""
    positive("deadline_s", deadline_s)
    start = time.monotonic()
    posts = dispatch(grid, messages)
    for post in posts:
        post.wait(max(start + deadline_s - time.monotonic(), 0.0))
    return [_arrival(post, start + deadline_s) for post in posts]


def dispatch(grid: Grid, messages: Sequence[Message]) -> list[Post]:
    """Send messages and return at once; the posts are settled as replies arrive."""
    posts = [Post(message) for message in messages]
    if posts:  # pushing may block while SuperLink is unreachable, so it has its own thread
        threading.Thread(target=_send, args=(grid, messages, posts), name="fedlane-send", daemon=True).start()
    return posts


def _arrival(post: Post, deadline: float) -> Arrival:
    """Return the outcome at the deadline, even if the reply arrived a moment later."""
    settled, arrived_s, reply, reason = post.settled, post.arrived_s, post.reply, post.reason
    if settled and arrived_s is not None and arrived_s <= deadline:
        return Arrival(post.node_id, post.sent_s, arrived_s, reply, reason, post)
    return Arrival(post.node_id, post.sent_s, None, None, "no answer by the deadline", post)


def _send(grid: Grid, messages: Sequence[Message], posts: list[Post]) -> None:
    """Push all messages in one call, which sends shared arrays once, and poll for the replies."""
    try:
        accepted = set(grid.push_messages(messages))
    except BaseException as error:  # Flower raises many kinds of errors, and none may end the round
        for post in posts:
            post._settle(None, f"could not be sent: {error or type(error).__name__}")
        return
    waiting: dict[str, Post] = {}
    for message, post in zip(messages, posts, strict=True):
        if message.metadata.message_id in accepted:
            waiting[message.metadata.message_id] = post
        else:
            post._settle(None, "SuperLink did not accept the message")
    _poll(grid, waiting)


def _poll(grid: Grid, waiting: dict[str, Post]) -> None:
    """Poll for replies until all have begun to arrive or have expired."""
    while waiting:
        began = time.monotonic()
        try:
            claims = claim(grid, list(waiting))
        except BaseException as error:  # the run was stopped, or SuperLink has shut down
            for post in waiting.values():
                post._settle(None, f"could not be polled: {error or type(error).__name__}")
            return
        for reply in claims:
            if reply.reply_to in waiting:
                post = waiting.pop(reply.reply_to)
                threading.Thread(target=_fetch, args=(reply, post), name="fedlane-fetch", daemon=True).start()
        for message_id, post in list(waiting.items()):
            if time.monotonic() > post.sent_s + post.ttl_s + AFTER_TTL_S:
                waiting.pop(message_id)._settle(None, "no answer within its time to live")
        time.sleep(max(began + POLL_S - time.monotonic(), POLL_S / 5))


def _fetch(claimed: ReplyClaim, post: Post) -> None:
    try:
        reply, arrived_s = claimed.fetch(post.sent_s + post.ttl_s + LATE_S, post.max_bytes)
        post._settle(reply, arrived_s=arrived_s)
    except BaseException as error:
        post._settle(None, f"could not be fetched: {error or type(error).__name__}")
