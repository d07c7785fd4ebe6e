"""Who can be asked now: connected, introduced, in good standing, and not still busy with an earlier order.

Introductions never hold up a round: a new node is asked who it is in the background, and takes part from the round
after its answer. A node that was late stays busy until it has answered or its order has expired (Flower's nodes work on
one message at a time, and an instruction behind a stale one only waits); what it reports too late is still read.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedlane.flower.protocol import KEY, Hello, Introduction, Order, ProtocolError
from fedlane.flower.server.grid import Post, dispatch
from fedlane.flower.server.guard import Dropped, Guard
from fedlane.flower.server.roster import Member, Roster, RosterError
from fedlane.records import BoolArray
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")

HELLO_S = 120.0
"""So long a node has to say who it is: many processes may start at once on a small machine, and nobody waits for it."""
AGAIN_S, REFUSED_AGAIN_S = 10.0, 300.0
"""A node that gave no answer, or one that was refused, is asked again after so long."""
LOOK_S = 0.1


@dataclass(frozen=True)
class Overdue:
    """An order that was not answered by its deadline."""

    post: Post
    order: Order | None
    """None for something else than an order, such as a call for evaluation."""


class Contacts:
    """The server's side of every node: connections, introductions and what is still out."""

    def __init__(self, roster: Roster, guard: Guard, federation: str, least: int) -> None:
        """least: so many clients are waited for at first, and numbered by name; later ones as they come."""
        self.roster, self.guard, self.federation, self.least = roster, guard, federation, least
        self.connected: set[int] = set()
        self.overdue: dict[int, Overdue] = {}
        self._hellos: dict[int, Post] = {}
        self._said: dict[int, Introduction] = {}
        self._not_before_s: dict[int, float] = {}
        self._refused: set[int] = set()

    def refresh(self, grid: Grid, round: int) -> None:
        """Look who is there, read what has come, ask the unknown who they are, and enter them."""
        self.connected = set(grid.get_node_ids())
        self._read_overdue(round)
        self._read_hellos(round)
        self._ask(grid)
        self._admit(round)

    def available(self) -> BoolArray:
        """(U,): who may be asked now."""
        return np.array([self.may_ask(member) for member in self.roster.members], np.bool_)

    def may_ask(self, member: Member) -> bool:
        idle = member.node_id in self.connected and member.node_id not in self.overdue
        return idle and not member.barred and not member.spent

    def wait(self, grid: Grid, round: int, seconds: float) -> bool:
        """Wait until somebody may be asked; at first until `least` are here. False when nobody ever can be again."""
        end = time.monotonic() + seconds
        while True:
            self.refresh(grid, round)
            if self.roster.members and self.available().any():
                return True
            members = self.roster.members
            known = {member.node_id for member in members} | self._refused | set(self._not_before_s)
            if members and all(member.barred or member.spent for member in members) and self.connected <= known:
                return False
            if time.monotonic() > end:
                raise InputError(
                    f"within {seconds:g} s there were {len(self.connected)} nodes and {len(self._said) + len(members)} "
                    f"introductions, and nobody who could be asked (min_clients {self.least})"
                )
            time.sleep(LOOK_S)

    def _read_overdue(self, round: int) -> None:
        for node_id, late in list(self.overdue.items()):
            if not late.post.settled:
                continue
            del self.overdue[node_id]
            member = self.roster.of_node(node_id)
            if late.post.reply is None or late.order is None or member is None:
                continue
            try:
                report = self.guard.report(late.post.reply.content, late.order)
            except Dropped as reason:
                say(logging.WARNING, late.order.round, member, late.order.lane, f"late, and dropped: {reason}")
                continue
            self.roster.put(member.heard(report))
            after_s = (late.post.arrived_s or 0.0) - late.post.sent_s
            say(logging.INFO, late.order.round, member, late.order.lane, f"its report came late, after {after_s:.1f} s")

    def _read_hellos(self, round: int) -> None:
        for node_id, post in list(self._hellos.items()):
            if not post.settled:
                continue
            del self._hellos[node_id]
            try:
                if post.reply is None:
                    raise ProtocolError(post.reason)
                self._said[node_id] = Introduction.read(post.reply.content)
            except ProtocolError as reason:
                logger.warning("round %d: node %d did not introduce itself: %s", round, node_id, plain(str(reason)))
                self._not_before_s[node_id] = time.monotonic() + AGAIN_S

    def _ask(self, grid: Grid) -> None:
        now = time.monotonic()
        known = {member.node_id for member in self.roster.members} | set(self._hellos) | set(self._said)
        new = [node for node in self.connected - known if self._not_before_s.get(node, now) <= now]
        content = RecordDict({KEY: Hello(self.federation).record()})
        messages = [Message(content, dst_node_id=n, message_type=MessageType.QUERY, ttl=HELLO_S) for n in sorted(new)]
        for post in dispatch(grid, messages):
            self._hellos[post.node_id] = post

    def _admit(self, round: int) -> None:
        if not self.roster.members and len(self._said) < self.least:
            return
        said, self._said = self._said, {}
        for node_id, introduction in sorted(said.items(), key=lambda item: (len(item[1].name), item[1].name)):
            try:
                member = self.roster.admit(node_id, introduction, round, self.connected)
                say(logging.INFO, round, member, None, f"takes part as client {member.index}")
                self._refused.discard(node_id)
            except RosterError as reason:
                logger.warning("round %d: node %d is refused: %s", round, node_id, reason)
                self._not_before_s[node_id] = time.monotonic() + REFUSED_AGAIN_S
                self._refused.add(node_id)


def say(level: int, round: int, member: Member, lane: int | None, text: str) -> None:
    """One line of log: who, where, when, what."""
    where = "" if lane is None else f", lane {lane}"
    logger.log(level, "round %d, node %d, client %s%s: %s", round, member.node_id, member.name, where, plain(text))


def plain(text: str) -> str:
    """What a node says, as part of one line of log and no more."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:500])


def named(roster: Roster, lanes: Mapping[int, int]) -> dict[str, int]:
    """{client: lane} by name, from indices."""
    return {roster.members[client].name: lane for client, lane in lanes.items()}
