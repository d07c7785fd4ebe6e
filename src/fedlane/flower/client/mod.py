"""LaneMod: lanes, deadlines and timing for a user's own training function, which stays as it is.

It adds no privacy: what a function does with its records cannot be seen from outside. For a budget that holds, see
`LaneClient`.
"""

from dataclasses import dataclass
from functools import partial

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedlane.flower.client.reply import BudgetReport, answer_hello, answer_order, client_name
from fedlane.flower.client.switch import LaneSwitch, switch_node
from fedlane.flower.protocol import KEY, Introduction, Order
from fedlane.validate import InputError


@dataclass(frozen=True, kw_only=True)
class LaneMod:
    """A Flower mod: ``app = ClientApp(mods=[lanes])``, then ``app.query()(lanes.introduce)``.

    Orders reach the training function as ordinary messages; its replies leave with a report. Messages without an order
    pass untouched, so that the app also serves other strategies.
    """

    size: float
    """Records, as the server may know them; Flower's own `num-examples` tells it too."""
    label_counts: tuple[float, ...] = ()
    """By which quotas weigh the client; empty: by its size alone."""
    batch_size: int = 1
    local_iterations: int = 1
    """The tau that orders must ask for; the training function does them."""
    name: str | None = None
    federation: str | None = None
    switch: LaneSwitch | None = None
    """By default the command `fedlane-switch` of the node's configuration, as "modem-band --to {lane}"; else none."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN or KEY not in message.content:
            return call_next(message, context)

        def work(order: Order, spending: BudgetReport) -> RecordDict:
            reply = call_next(message, context)
            if reply.has_error():
                raise InputError(f"the training function answered with Flower's error {reply.error.code}")
            return reply.content

        return answer_order(
            message,
            name=client_name(self.name, context),
            iterations=self.local_iterations,
            federation=self.federation,
            switch=partial(switch_node, self.switch, context.node_config),
            work=work,
        )

    def introduce(self, message: Message, context: Context) -> Message:
        """Say who this is; a query function for the app."""
        return answer_hello(message, self.federation, lambda: self._introduction(context))

    def _introduction(self, context: Context) -> Introduction:
        name = client_name(self.name, context)
        return Introduction.without_budget(name, self.size, self.label_counts, self.batch_size, self.local_iterations)
