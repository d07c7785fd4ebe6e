"""Which clients are present, that is connected, and which are available: also in good standing, and not busy.

Introductions never delay a round: a new node is asked to introduce itself in the background, and takes part from the
round after its answer. A node that missed a deadline stays busy until it has answered or its order has expired, because
a Flower node works on one message at a time. Its late report is still read.
"""

import logging
import time
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedlane.flower.protocol import KEY, Hello, Introduction, Order, ProtocolError
from fedlane.flower.server.grid import Post, dispatch
from fedlane.flower.server.guard import Guard
from fedlane.flower.server.roster import Member, Roster, RosterError
from fedlane.records import BoolArray
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")

HELLO_S = 120.0
"""Timeout for a node's introduction, in seconds. It is long because many processes may start on a small machine."""
RETRY_S, RETRY_REFUSED_S = 10.0, 300.0
"""Seconds before the next request to a node that did not introduce itself, or that was refused."""
POLL_S = 0.1
LONGEST_LOG_TEXT = 500


@dataclass(frozen=True)
class Overdue:
    """A message that was not answered by its deadline."""

    post: Post
    order: Order | None
    """None for a message that is not an order, such as a request for evaluation."""


@dataclass(frozen=True)
class _RefusedNode:
    """A node that was not admitted."""

    introduction: Introduction
    holder: int | None
    """The node whose leaving would free its name."""


class Contacts:
    """The server's contacts with nodes: connections, introductions, and unanswered messages."""

    def __init__(self, roster: Roster, guard: Guard, federation: str, min_clients: int) -> None:
        """``min_clients`` introductions are awaited before the first clients are admitted, in order of their names."""
        self.roster, self.guard, self.federation, self.min_clients = roster, guard, federation, min_clients
        self.connected: set[int] = set()
        self.overdue: dict[int, Overdue] = {}
        self._hellos: dict[int, Post] = {}
        self._introductions: dict[int, Introduction] = {}
        """Introductions of nodes that are not admitted yet."""
        self._not_before_s: dict[int, float] = {}
        self._refused: dict[int, _RefusedNode] = {}

    def refresh(self, grid: Grid, round: int) -> None:
        """Update the connected nodes, read answers, ask new nodes to introduce themselves, and admit them."""
        self.connected = set(grid.get_node_ids())
        self._reconsider()
        self._read_overdue()
        self._read_hellos(round)
        self._send_hellos(grid)
        self._admit(round)

    def present(self) -> BoolArray:
        """Return which clients are there, (U,): those whose node is connected, busy or not."""
        return np.array([member.node_id in self.connected for member in self.roster.members], np.bool_)

    def available(self) -> BoolArray:
        """Return which clients are available, (U,)."""
        return np.array([self.may_ask(member) for member in self.roster.members], np.bool_)

    def may_ask(self, member: Member) -> bool:
        """Return whether a client is connected and idle, and neither barred nor out of budget."""
        idle = member.node_id in self.connected and member.node_id not in self.overdue
        return idle and not member.barred and not member.spent

    def wait(self, grid: Grid, round: int, seconds: float) -> bool:
        """Wait until a client is available; return False if none can become available again.

        Raises:
            InputError: No client became available within ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            self.refresh(grid, round)
            members = self.roster.members
            if members and self.available().any():
                return True
            settled = {member.node_id for member in members} | set(self._refused) | set(self._not_before_s)
            if members and all(member.barred or member.spent for member in members) and self.connected <= settled:
                return False
            if time.monotonic() > end:
                introductions = len(self._introductions) + len(members)
                raise InputError(
                    f"no client became available within {seconds:g} s: {len(self.connected)} nodes were connected and "
                    f"{introductions} had introduced themselves (min_clients is {self.min_clients})"
                )
            time.sleep(POLL_S)

    def _read_overdue(self) -> None:
        for node_id, late in list(self.overdue.items()):
            if not late.post.settled:
                continue
            del self.overdue[node_id]
            member = self.roster.of_node(node_id)
            if late.post.reply is None or late.order is None or member is None:
                continue
            order = late.order
            try:
                report = self.guard.report(late.post.reply.content, order)
            except Exception as reason:  # nothing that a node sends may end the federation
                log_client(logging.WARNING, order.round, member, order.lane, f"late, and dropped: {reason}")
                continue
            self.roster.put(member.heard(report))
            after_s = (late.post.arrived_s or 0.0) - late.post.sent_s
            log_client(logging.INFO, order.round, member, order.lane, f"report arrived late, after {after_s:.1f} s")

    def _read_hellos(self, round: int) -> None:
        for node_id, post in list(self._hellos.items()):
            if not post.settled:
                continue
            del self._hellos[node_id]
            try:
                if post.reply is None:
                    raise ProtocolError(post.reason)
                self._introductions[node_id] = Introduction.read(post.reply.content)
            except Exception as reason:  # nothing that a node sends may end the federation
                logger.warning("round %d: node %d did not introduce itself: %s", round, node_id, printable(str(reason)))
                self._not_before_s[node_id] = time.monotonic() + RETRY_S

    def _send_hellos(self, grid: Grid) -> None:
        now = time.monotonic()
        asked = {member.node_id for member in self.roster.members} | set(self._hellos) | set(self._introductions)
        new = [node for node in self.connected - asked if self._not_before_s.get(node, now) <= now]
        content = RecordDict({KEY: Hello(self.federation).record()})
        messages = [Message(content, dst_node_id=n, message_type=MessageType.QUERY, ttl=HELLO_S) for n in sorted(new)]
        for post in dispatch(grid, messages):
            self._hellos[post.node_id] = post

    def _reconsider(self) -> None:
        """Admit nodes whose name has become free. A restarted node has a new id while its old one is still listed."""
        for node_id, refused in list(self._refused.items()):
            if node_id not in self.connected:
                del self._refused[node_id]
            elif refused.holder is not None and refused.holder not in self.connected:
                self._introductions[node_id] = refused.introduction

    def _admit(self, round: int) -> None:
        if not self.roster.members and len(self._introductions) < self.min_clients:
            return
        introductions, self._introductions = self._introductions, {}
        for node_id, introduction in sorted(introductions.items(), key=lambda item: (len(item[1].name), item[1].name)):
            try:
                member = self.roster.admit(node_id, introduction, round, self.connected)
                log_client(logging.INFO, round, member, None, f"joined as client {member.index}")
                self._refused.pop(node_id, None)
            except RosterError as reason:
                logger.warning("round %d: node %d is refused: %s", round, node_id, reason)
                self._not_before_s[node_id] = time.monotonic() + RETRY_REFUSED_S
                self._refused[node_id] = _RefusedNode(introduction, reason.holder)


def log_client(level: int, round: int, member: Member, lane: int | None, text: str) -> None:
    """Log one line about a client: round, node, name, lane if it has one, and the text."""
    where = "" if lane is None else f", lane {lane}"
    logger.log(level, "round %d, node %d, client %s%s: %s", round, member.node_id, member.name, where, printable(text))


def printable(text: str) -> str:
    """Return a node's text in a form that cannot break or flood the log."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:LONGEST_LOG_TEXT])
