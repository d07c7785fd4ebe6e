"""A round between the choice of its clients and its end."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from fedlane.flower.protocol import Order, Report
from fedlane.flower.server.contacts import Contacts, Overdue, log_client
from fedlane.flower.server.grid import Arrival
from fedlane.flower.server.guard import Dropped, InspectedUpdate
from fedlane.flower.server.reported_losses import read_losses
from fedlane.flower.server.roster import Member
from fedlane.flower.server.scheduler import MeasuredDelay
from fedlane.flower.server.state import ServerState
from fedlane.flower.server.strategy_arrays import Model, to_model
from fedlane.rounds import Orders

logger = logging.getLogger("fedlane.flower")


@dataclass(frozen=True)
class RoundInFlight:
    """The decisions made at the beginning of a round."""

    orders: Mapping[int, Order] = field(default_factory=dict)
    """The orders that were sent, by node id."""
    unsent: Orders | None = None
    """The orders of a round that could not be sent."""

    def end(self, arrivals: Sequence[Arrival], state: ServerState, contacts: Contacts) -> list[Message]:
        """Check the arrivals, update the policy, and return the replies that may be aggregated."""
        scheduler, model, clients = state.scheduler, to_model(state.arrays), state.roster.voters
        measured: dict[int, MeasuredDelay] = {}
        inspected = [found for arrival in arrivals if (found := self._inspect(arrival, state, contacts, model))]
        reasons = state.guard.judge([update for _, _, update in inspected], model, clients)
        accepted, losses = [], {}
        for (arrival, report, _), reason in zip(inspected, reasons, strict=True):
            order, member = self._of(arrival, state)
            assert arrival.reply is not None
            assert arrival.delay_s is not None
            if reason:
                _drop(order, member, reason, state)
                continue
            measured[member.index] = MeasuredDelay(arrival.delay_s, report.compute_s + report.switch_s)
            accepted.append(arrival.reply)
            if (reported := read_losses(arrival.reply.content)) is not None:
                losses[member.index] = reported
            log_client(logging.INFO, order.round, member, order.lane, f"punctual after {arrival.delay_s:.2f} s")
        if self.unsent is None:
            scheduler.settle(measured)
        else:
            scheduler.void(self.unsent)
        scheduler.record_losses(losses)
        scheduler.record_epsilon([member.epsilon for member in state.roster.members])
        return accepted

    def _inspect(
        self, arrival: Arrival, state: ServerState, contacts: Contacts, model: Model
    ) -> tuple[Arrival, Report, InspectedUpdate] | None:
        """Read a reply; None if it is dropped."""
        order, member = self._of(arrival, state)
        try:
            if not arrival.post.settled:
                contacts.overdue[arrival.node_id] = Overdue(arrival.post, order)
            if arrival.reply is None or arrival.delay_s is None:
                raise Dropped(arrival.reason)
            report = state.guard.report(arrival.reply.content, order)
            read_losses(arrival.reply.content)  # malformed ones drop the reply
            member = state.roster.put(member.heard(report))
            update = state.guard.inspect(arrival.reply.content, report, model, member.introduction.size)
        except Dropped as reason:
            _drop(order, member, str(reason), state)
            return None
        except Exception as error:  # nothing that a node sends may end the federation
            logger.debug("round %d: a reply could not be inspected", order.round, exc_info=True)
            _drop(order, member, f"it cannot be inspected: {type(error).__name__}: {error}", state)
            return None
        return arrival, report, update

    def _of(self, arrival: Arrival, state: ServerState) -> tuple[Order, Member]:
        """Return the order and the client that an arrival belongs to."""
        member = state.roster.of_node(arrival.node_id)
        assert member is not None
        return self.orders[arrival.node_id], member


def _drop(order: Order, member: Member, reason: str, state: ServerState) -> None:
    log_client(logging.WARNING, order.round, member, order.lane, f"dropped: {reason}")
    state.drop(member.name)
