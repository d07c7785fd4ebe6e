"""How a client answers: orders with a report, whatever happens, and questions with an introduction.

What leaves the client in words is FedLane's own: of an error in somebody else's code only the kind is told, since its
text may quote a record. The client's log has the rest.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict

from fedlane.flower.client.switch import LaneSwitch
from fedlane.flower.protocol import FAILED, KEY, REFUSED, TRAINED, Hello, Introduction, Order, ProtocolError, Report
from fedlane.validate import InputError

log = logging.getLogger("fedlane.flower")
_FOLDERS = re.compile(r"(?<![\w.])[~/].*/")
PRECONDITION = 6
"""Flower's code for a message that a client cannot work with."""


class Refusal(InputError):
    """The client will not train for this order, nor for one like it."""


@dataclass
class BudgetReport:
    """What a report tells of a client's budget; whoever works on an order keeps it up to date."""

    uploads: int = 0
    max_uploads: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


def client_name(name: str | None, context: Context) -> str:
    """The name given, or the node's own: `fedlane-name` of its configuration, else its partition, else its id."""
    if name is None:
        config = context.node_config
        partition = config.get("partition-id")
        given = config.get("fedlane-name", f"node-{context.node_id}" if partition is None else f"client-{partition}")
        name = str(given)
    if not name or len(name) > 200 or not name.isprintable():
        raise InputError(f"a client's name must be 1 to 200 printable characters, got {name!r}")
    return name


def answer_order(
    message: Message,
    *,
    name: str,
    iterations: int,
    federation: str | None,
    switch: LaneSwitch,
    work: Callable[[Order, BudgetReport], RecordDict],
) -> Message:
    """The reply to a TRAIN message: what ``work`` gives, with a report; or a report alone that says why not."""
    try:
        order = Order.read(message.content)
    except ProtocolError as error:
        return error_reply(message, error)
    begin = time.perf_counter()
    spending, switch_s = BudgetReport(), 0.0
    content, status, reason = RecordDict(), TRAINED, ""
    try:
        _check(order, name, iterations, federation)
        switch_s = _switched(switch, order.lane)
        content = work(order, spending)
    except Refusal as error:
        status, reason = REFUSED, public_reason(error)
    except Exception as error:
        status, reason = FAILED, public_reason(error)
        if not isinstance(error, InputError):
            log.exception("client %s, lane %d, round %d: failed", name, order.lane, order.round)
    if status != TRAINED:
        log.warning("client %s, lane %d, round %d: %s: %s", name, order.lane, order.round, status, reason)
    content[KEY] = Report(
        client=name,
        round=order.round,
        lane=order.lane,
        status=status,
        reason=reason,
        compute_s=max(0.0, time.perf_counter() - begin - switch_s),
        switch_s=switch_s,
        uploads=spending.uploads,
        max_uploads=spending.max_uploads,
        epsilon=spending.epsilon,
        delta=spending.delta,
    ).record()
    return Message(content, reply_to=message)


def answer_hello(message: Message, federation: str | None, introduce: Callable[[], Introduction]) -> Message:
    """The reply to a QUERY message: who this client is; or an error that says why it cannot tell."""
    try:
        hello = Hello.read(message.content)
        if federation is not None and hello.federation != federation:
            raise InputError(f"this client is of federation {federation!r}, not {hello.federation!r}")
        return Message(RecordDict({KEY: introduce().record()}), reply_to=message)
    except Exception as error:
        return error_reply(message, error)


def error_reply(message: Message, error: Exception) -> Message:
    """The reply to a message that cannot be answered."""
    log.warning("no answer: %s", public_reason(error), exc_info=None if isinstance(error, InputError) else error)
    return Message(Error(PRECONDITION, public_reason(error)), reply_to=message)


def public_reason(error: Exception) -> str:
    """What others may know of an error: one line of our own, without folders, or the kind of somebody else's."""
    if isinstance(error, InputError):
        return " ".join(_FOLDERS.sub("", word) for word in str(error).split())[:500]
    return f"{type(error).__name__} (the client's log has more)"


def _check(order: Order, name: str, iterations: int, federation: str | None) -> None:
    if order.client != name:
        raise Refusal(f"the order is for client {order.client!r}, this is {name!r}")
    if federation is not None and order.federation != federation:
        raise Refusal(f"the order is from federation {order.federation!r}, this client is of {federation!r}")
    if order.iterations != iterations:
        raise Refusal(f"the order asks for {order.iterations} local iterations, this client's terms say {iterations}")


def _switched(switch: LaneSwitch, lane: int) -> float:
    """Switch, and say how long it took."""
    begin = time.perf_counter()
    try:
        switch(lane)
    except InputError as error:
        raise InputError(f"lane {lane} could not be switched: {error}") from error
    except Exception as error:
        log.exception("lane %d could not be switched", lane)
        raise InputError(f"lane {lane} could not be switched: {type(error).__name__}") from error
    return time.perf_counter() - begin
