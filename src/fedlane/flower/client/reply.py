"""A client's replies: a report to every order, and an introduction to a hello.

Only the public part of a `PublicError` leaves a client, and only if it was not raised in the user's code. For every
other error one constant text is sent, because its message may quote a record and its type may depend on one. The whole
text is in the client's log.
"""

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict

from fedlane.flower.client.switch import LaneSwitch
from fedlane.flower.protocol import FAILED, KEY, REFUSED, TRAINED, Hello, Introduction, Order, ProtocolError, Report
from fedlane.validate import InputError, PublicError, printable

log = logging.getLogger("fedlane.flower")
PRECONDITION = 6
"""Flower's error code for a message that a client cannot process."""
CLIENT_ERROR = "an error in the client's code or data (see the client's log)"
"""The reason that is sent for every error whose text FedLane did not write for the server."""


class Refusal(PublicError):
    """The client refuses this order, and any other like it."""


class ClientCodeError(Exception):
    """The user's code or data gave an error, which is the cause of this one. The server learns nothing about it."""


@contextmanager
def foreign_code() -> Iterator[None]:
    """Raise a `ClientCodeError` for every error in the block, because it runs the user's code or reads the records.

    A `PublicError` is no exception: the user's code may call FedLane's functions, or raise one itself.
    """
    try:
        yield
    except Exception as error:
        raise ClientCodeError(CLIENT_ERROR) from error


@dataclass
class BudgetReport:
    """State of the privacy budget for the report, updated by the function that trains."""

    uploads: int = 0
    max_uploads: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


def client_name(name: str | None, context: Context) -> str:
    """Return the given name, else `fedlane-name` of the node's configuration, else a name from its partition or id."""
    if name is None:
        config = context.node_config
        partition = config.get("partition-id")
        default = f"node-{context.node_id}" if partition is None else f"client-{partition}"
        name = str(config.get("fedlane-name", default))
    if not name or len(name) > 200 or not name.isprintable():
        raise InputError(f"a client's name must be 1 to 200 printable characters, got {name!r}")
    return name


def order_reply(
    message: Message,
    *,
    name: str,
    iterations: int,
    federation: str | None,
    switch: LaneSwitch,
    work: Callable[[Order, BudgetReport], RecordDict],
) -> Message:
    """Reply to a TRAIN message: with the result of ``work`` and a report, or with a report of the failure alone."""
    try:
        order = Order.read(message.content)
    except ProtocolError as error:
        return error_reply(message, error)
    begin = time.perf_counter()
    budget, switch_s = BudgetReport(), 0.0
    content, status, reason = RecordDict(), TRAINED, ""
    try:
        _check_order(order, name, iterations, federation)
        switch_s = _switch_lane(switch, order.lane)
        content = work(order, budget)
    except Refusal as error:
        status, reason = REFUSED, public_reason(error)
        _log_failure(name, order, status, error)
    except Exception as error:
        status, reason = FAILED, public_reason(error)
        _log_failure(name, order, status, error)
    content[KEY] = Report(
        client=name,
        round=order.round,
        lane=order.lane,
        status=status,
        reason=reason,
        compute_s=max(0.0, time.perf_counter() - begin - switch_s),
        switch_s=switch_s,
        uploads=budget.uploads,
        max_uploads=budget.max_uploads,
        epsilon=budget.epsilon,
        delta=budget.delta,
    ).record()
    return Message(content, reply_to=message)


def hello_reply(message: Message, federation: str | None, introduce: Callable[[], Introduction]) -> Message:
    """Reply to a QUERY message: with an introduction, or with an error."""
    try:
        hello = Hello.read(message.content)
        if federation is not None and hello.federation != federation:
            raise PublicError(f"this client belongs to federation {federation!r}, not {hello.federation!r}")
        return Message(RecordDict({KEY: introduce().record()}), reply_to=message)
    except Exception as error:
        return error_reply(message, error)


def error_reply(message: Message, error: Exception) -> Message:
    """Reply to a message with an error."""
    log.warning("cannot answer a message: %s", _whole_text(error))
    return Message(Error(PRECONDITION, public_reason(error)), reply_to=message)


def public_reason(error: Exception) -> str:
    """Return the text of an error for the server: that of a `PublicError`, or one text for all others."""
    return str(printable(error.public))[:500] if isinstance(error, PublicError) else CLIENT_ERROR


def _log_failure(name: str, order: Order, status: str, error: Exception) -> None:
    log.warning("client %s, lane %d, round %d: %s: %s", name, order.lane, order.round, status, _whole_text(error))


def _whole_text(error: Exception) -> str:
    """Return the text of an error for the client's log: a line, or a traceback, without control characters.

    A server chooses the names of the arrays that it sends, and a terminal obeys control characters.
    """
    cause = error.__cause__ if isinstance(error, ClientCodeError) and error.__cause__ is not None else error
    if isinstance(cause, InputError):
        return str(printable(str(cause)))
    return "\n".join(printable("".join(traceback.format_exception(cause)).split("\n")))


def _check_order(order: Order, name: str, iterations: int, federation: str | None) -> None:
    if order.client != name:
        raise Refusal(f"the order is for client {order.client!r}, but this is {name!r}")
    if federation is not None and order.federation != federation:
        raise Refusal(f"the order is from federation {order.federation!r}, but this client belongs to {federation!r}")
    if order.iterations != iterations:
        raise Refusal(f"the order is for {order.iterations} local iterations, but this client's terms say {iterations}")


def _switch_lane(switch: LaneSwitch, lane: int) -> float:
    """Switch to a lane and return the seconds that it took."""
    begin = time.perf_counter()
    try:
        switch(lane)
    except Exception as error:
        if not isinstance(error, InputError):
            log.warning("the lane switch failed: %s", _whole_text(error))
        raise PublicError(f"cannot switch to lane {lane}", f": {str(error) or type(error).__name__}") from error
    return time.perf_counter() - begin
