"""LaneMod: lanes, deadlines and timing for a user's own training function, without changing the function.

It adds no privacy, because a function's use of its records cannot be observed from outside. For a privacy
budget, use `LaneClient`.
"""

from dataclasses import dataclass
from functools import partial

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedlane.flower.client.reply import BudgetReport, client_name, foreign_code, hello_reply, order_reply
from fedlane.flower.client.switch import LaneSwitch, switch_node
from fedlane.flower.protocol import KEY, Introduction, Order
from fedlane.validate import PublicError


@dataclass(frozen=True, kw_only=True)
class LaneMod:
    """A Flower mod that adds lanes, deadlines and timing to an ordinary training function.

    Orders reach the function as ordinary messages, and a report is added to its replies. Messages without an order pass
    unchanged, so the app also works with other strategies.

    Attributes:
        size: Number of records, as disclosed to the server; it is also Flower's `num-examples`.
        label_counts: Records per class, from which the client's quota follows; if empty, it follows from the size.
        batch_size: Records per step of the training function.
        local_iterations: Steps per update of the training function. Orders for a different number are refused.
        name: Name of the client; by default `fedlane-name` of the node's configuration, else client-PARTITION, else
            node-ID.
        federation: Name of the only federation to serve; None serves any.
        switch: Lane switch; by default the command `fedlane-switch` of the node's configuration, for example
            "modem-band --to {lane}", if there is one.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> from fedlane.flower import LaneMod
        >>> lanes = LaneMod(size=1200, label_counts=(700, 300, 200), local_iterations=5)
        >>> app = ClientApp(mods=[lanes])
        >>> introduce = app.query()(lanes.introduce)
    """

    size: float
    label_counts: tuple[float, ...] = ()
    batch_size: int = 1
    local_iterations: int = 1
    name: str | None = None
    federation: str | None = None
    switch: LaneSwitch | None = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN or KEY not in message.content:
            return call_next(message, context)

        def work(order: Order, budget: BudgetReport) -> RecordDict:
            with foreign_code():
                reply = call_next(message, context)
            if reply.has_error():
                raise PublicError(
                    "the training function replied with an error", f" of Flower's code {reply.error.code}"
                )
            return reply.content

        return order_reply(
            message,
            name=client_name(self.name, context),
            iterations=self.local_iterations,
            federation=self.federation,
            switch=partial(switch_node, self.switch, context.node_config),
            work=work,
        )

    def introduce(self, message: Message, context: Context) -> Message:
        """Introduce the client to the server; register it as the app's query function.

        Args:
            message: QUERY message with the federation's name.
            context: Flower's context.

        Returns:
            A reply with the client's name, size and label counts.
        """
        return hello_reply(message, self.federation, lambda: self._introduction(context))

    def _introduction(self, context: Context) -> Introduction:
        name = client_name(self.name, context)
        return Introduction.without_budget(name, self.size, self.label_counts, self.batch_size, self.local_iterations)
