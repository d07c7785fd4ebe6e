"""A round between the choice of its clients and its end."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message

from fedlane.flower.protocol import Order
from fedlane.flower.server.aggregation import to_model
from fedlane.flower.server.contacts import Contacts, Overdue, log_client
from fedlane.flower.server.grid import Arrival
from fedlane.flower.server.guard import Dropped
from fedlane.flower.server.scheduler import MeasuredDelay
from fedlane.flower.server.state import ServerState
from fedlane.records import BoolArray


@dataclass(frozen=True)
class RoundInFlight:
    """The decisions made at the beginning of a round."""

    available: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    """(U,): the available clients."""
    orders: Mapping[int, Order] = field(default_factory=dict)
    """The orders that were sent, by node id."""
    failed: Mapping[int, int] = field(default_factory=dict)
    """{client index: lane} of a round whose orders could not be sent."""

    def end(self, arrivals: Sequence[Arrival], state: ServerState, contacts: Contacts) -> list[Message]:
        """Check the arrivals, update the policy, and return the replies that may be aggregated."""
        scheduler, model = state.scheduler, to_model(state.arrays)
        measured = {client: MeasuredDelay(lane, None) for client, lane in self.failed.items()}
        accepted = []
        for arrival in arrivals:
            order, member = self.orders[arrival.node_id], state.roster.of_node(arrival.node_id)
            assert member is not None
            measured[member.index] = MeasuredDelay(order.lane, None)
            try:
                if not arrival.post.settled:
                    contacts.overdue[arrival.node_id] = Overdue(arrival.post, order)
                if arrival.reply is None or arrival.delay_s is None:
                    raise Dropped(arrival.reason)
                report = state.guard.report(arrival.reply.content, order)
                member = state.roster.put(member.heard(report))
                state.guard.check(arrival.reply.content, report, model, member.introduction.size)
            except Dropped as reason:
                log_client(logging.WARNING, order.round, member, order.lane, f"dropped: {reason}")
                state.drop(member)
                continue
            measured[member.index] = MeasuredDelay(order.lane, arrival.delay_s, report.compute_s + report.switch_s)
            accepted.append(arrival.reply)
            log_client(logging.INFO, order.round, member, order.lane, f"punctual after {arrival.delay_s:.2f} s")
        scheduler.learn(measured, self.available)
        scheduler.epsilon[scheduler.round - 1] = [
            np.nan if member.epsilon is None else member.epsilon for member in state.roster.members
        ]
        return accepted
