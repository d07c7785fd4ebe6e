"""LaneClient: a ClientApp that trains a user's model privately, charges its ledger, and reports the result.

Flower starts a process for every message. PyTorch and the accountant are therefore imported where they are used: a
QUERY message is answered sooner, and the time of the imports counts as compute time, not as network time.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.client.reply import (
    BudgetReport,
    Refusal,
    client_name,
    error_reply,
    foreign_code,
    hello_reply,
    order_reply,
)
from fedlane.flower.client.switch import LaneSwitch, switch_node
from fedlane.flower.protocol import LOSSES, Introduction, Order
from fedlane.validate import InputError, PublicError

if TYPE_CHECKING:
    from torch import Tensor

    from fedlane.flower.client.training import PrivacyAccount, TrainedUpload, TrainingTerms
    from fedlane.flower.client.weights import ModelSource
    from fedlane.privacy.ledger import ClientLedger
    from fedlane.records import IntArray

Data = Callable[[Context], tuple[Any, Any]]
"""A function that returns inputs (n, planes, height, width) or (n, ...), bytes, floats or tokens, and labels (n,)."""


@dataclass(frozen=True, kw_only=True)
class LaneClient:
    """A Flower client that trains a model on its own records, under a privacy budget that its ledger enforces.

    Use `lane_app` instead if settings depend on the node or the run.

    Attributes:
        model: Class of a `torch.nn.Module`, or a function that returns a module; or the name of a built-in model
            ("mlp", "cnn", "softmax", "sequence").
        data: Function of Flower's context that returns the client's records: inputs (n, planes, height, width) or
            (n, ...), bytes, floats or tokens, and integer labels (n,).
        classes: Number of classes, at least 2.
        learning_rate: Step size eta of local SGD.
        epsilon: Privacy budget for all uploads and the release of the label histogram; None trains without privacy
            and without a ledger.
        delta: Target delta of the budget.
        max_uploads: Number of uploads that the budget covers.
        clip_norm: Bound C on the L2 norm of each record's gradient.
        batch_size: Expected number b of records in a step.
        local_iterations: Steps tau per upload. Orders for a different number are refused.
        ledger: Path of the ledger; by default `fedlane-ledger` of the node's configuration.
        dataset: Name of the data set in the ledger. Do not rename it: the same records under another name would be
            charged a second time.
        name: Name of the client; by default `fedlane-name` of the node's configuration, else client-PARTITION, else
            node-ID.
        federation: Name of the only federation to serve; None serves any.
        switch: Lane switch; by default the command `fedlane-switch` of the node's configuration, for example
            "modem-band --to {lane}", if there is one.
        evaluate_on: Function like `data`, for samples on which the server may evaluate the model. The exact loss and
            accuracy are sent, and the privacy budget does not cover them.
        create_ledger: Whether to create a missing ledger when the server first asks for an introduction. An order
            never creates one.
        histogram_noise: Standard deviation of the noise on each released label count, in records.
        least_noise: Smallest noise multiplier to accept: a budget that allows less noise is refused.
        tokens: Size of the vocabulary where inputs are sequences of tokens (n, length), whole numbers; None where they
            are numbers.
        report_losses: Whether to report losses with every update, for policies that require them. A private client
            releases them within its budget, with a noisier first step; without privacy they are exact.
        loss_clip: Largest loss of a record in the report of a private client.
        loss_noise: Noise multiplier of the report, greater than that of a step.

    Examples:
        >>> import numpy as np
        >>> from fedlane.flower import LaneClient
        >>> def records(context):
        ...     rng = np.random.default_rng(0)
        ...     return rng.random((300, 1, 8, 8), np.float32), rng.integers(10, size=300)
        >>> client = LaneClient(model="mlp", data=records, classes=10, learning_rate=0.1, epsilon=8.0)
        >>> app = client.app()
    """

    model: "ModelSource"
    data: Data
    classes: int
    learning_rate: float
    epsilon: float | None
    delta: float = 1e-5
    max_uploads: int = 100
    clip_norm: float = 1.0
    batch_size: int = 32
    local_iterations: int = 5
    ledger: str | Path | None = None
    dataset: str = "data"
    name: str | None = None
    federation: str | None = None
    switch: LaneSwitch | None = None
    evaluate_on: Data | None = None
    create_ledger: bool = False
    histogram_noise: float = 10.0
    least_noise: float = 0.5
    tokens: int | None = None
    report_losses: bool = False
    loss_clip: float = 4.0
    loss_noise: float = 4.0

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"classes must be at least 2, got {self.classes}")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"tokens must be at least 1, got {self.tokens}")

    def app(self) -> ClientApp:
        """Return a ClientApp that answers TRAIN, QUERY and EVALUATE messages.

        Returns:
            The app, for the `clientapp` entry of a Flower project.
        """
        return lane_app(lambda context: self)

    def train(self, message: Message, context: Context) -> Message:
        """Train for an order.

        Args:
            message: TRAIN message with the server's model and an order.
            context: Flower's context.

        Returns:
            A reply with the update and a report, or with a report alone that says why there is no update.
        """
        return order_reply(
            message,
            name=client_name(self.name, context),
            iterations=self.local_iterations,
            federation=self.federation,
            switch=partial(switch_node, self.switch, context.node_config),
            work=lambda order, budget: self._train(order, budget, message.content, context),
        )

    def query(self, message: Message, context: Context) -> Message:
        """Introduce the client to the server.

        Args:
            message: QUERY message with the federation's name.
            context: Flower's context.

        Returns:
            A reply with the client's name, terms and released label counts.
        """
        return hello_reply(message, self.federation, lambda: self._introduction(context))

    def evaluate(self, message: Message, context: Context) -> Message:
        """Evaluate the server's model, if the client allows it.

        Args:
            message: EVALUATE message with the server's model.
            context: Flower's context.

        Returns:
            A reply with the metrics `loss`, `accuracy` and `num-examples`.

        Raises:
            InputError: If the client is private and has no `evaluate_on`.
        """
        if self.epsilon is not None and self.evaluate_on is None:
            raise PublicError(
                "a private client reports no loss or accuracy: its budget does not cover them (see evaluate_on)"
            )
        from fedlane.flower.client.weights import evaluate_arrays

        arrays = _model_arrays(message.content)
        with foreign_code():
            inputs, labels = (self.evaluate_on or self.data)(context)
            figures = evaluate_arrays(self.model, arrays, inputs, labels, self.classes, self.tokens)
            metrics = MetricRecord({**figures, "num-examples": len(labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def _train(self, order: Order, budget: BudgetReport, content: RecordDict, context: Context) -> RecordDict:
        """Train for an order. Everything that can fail is tried before the ledger is charged."""
        from fedlane.flower.client.training import LocalTrainer, open_privacy_account
        from fedlane.flower.client.weights import build_model, original_shape
        from fedlane.privacy.ledger import LedgerError, LedgerInUseError

        terms = self._terms()
        inputs, labels, counts = self._records(context)
        private = terms.epsilon is not None
        with foreign_code():
            shape = original_shape(inputs)
            model = build_model(self.model, shape, self.classes, per_record=private, tokens=self.tokens)
        received = {name: array.numpy() for name, array in _model_arrays(content).items()}
        trainer = LocalTrainer.of(model, received, inputs, labels, self.classes)
        if terms.epsilon is None:
            with foreign_code():
                return _update(trainer.train_plainly(terms), len(labels))
        try:
            with closing(self._open_ledger(context, create=False)) as ledger:  # locked, so only one upload at a time
                account = open_privacy_account(ledger, self.dataset, terms, counts)
                _report_budget(budget, account, account.entry.uploads)
                charged = ledger.reserve(self.dataset, order.round, server_count=order.server_count)
                _report_budget(budget, account, charged.uploads)
                with foreign_code():
                    return _update(trainer.train_privately(account, terms.learning_rate), account.size)
        except LedgerInUseError:
            raise
        except LedgerError as error:
            raise Refusal(error.public, error.detail) from error

    def _introduction(self, context: Context) -> Introduction:
        from fedlane.flower.client.training import open_privacy_account

        terms = self._terms()
        name = client_name(self.name, context)
        _, labels, counts = self._records(context)
        if terms.epsilon is None:
            return Introduction.without_budget(name, len(labels), counts, self.batch_size, self.local_iterations)
        with closing(self._open_ledger(context, create=self.create_ledger)) as ledger:
            account = open_privacy_account(ledger, self.dataset, terms, counts)
            return Introduction(
                name=name,
                size=account.size,
                label_counts=tuple(max(0.0, count) for count in account.histogram),
                epsilon=terms.epsilon,
                delta=terms.delta,
                max_uploads=terms.max_uploads,
                uploads=account.entry.uploads,
                batch_size=self.batch_size,
                local_iterations=self.local_iterations,
                upload_noise=account.upload_noise,
                # This takes seconds the first time, so it is done now and not while a lane is waiting.
                epsilon_spent=account.epsilon(account.entry.uploads),
            )

    def _terms(self) -> "TrainingTerms":
        from fedlane.flower.client.training import TrainingTerms

        return TrainingTerms(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            local_iterations=self.local_iterations,
            clip_norm=self.clip_norm,
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=float(self.delta),
            max_uploads=self.max_uploads,
            histogram_noise=float(self.histogram_noise),
            least_noise=self.least_noise,
            report_losses=self.report_losses,
            loss_clip=float(self.loss_clip),
            loss_noise=float(self.loss_noise),
        )

    def _records(self, context: Context) -> "tuple[Tensor, Tensor, IntArray]":
        """Return inputs, labels and label counts."""
        import numpy as np

        from fedlane.flower.client.weights import as_stored

        with foreign_code():
            inputs, labels = as_stored(*self.data(context), self.classes, self.tokens)
        return inputs, labels, np.bincount(labels.numpy(), minlength=self.classes)

    def _open_ledger(self, context: Context, *, create: bool) -> "ClientLedger":
        from fedlane.flower.client.ledger_file import new_ledger, open_ledger
        from fedlane.privacy.ledger import LedgerError

        given = self.ledger if self.ledger is not None else context.node_config.get("fedlane-ledger")
        if given is None:
            raise LedgerError(
                "a private client needs a ledger: pass one, or set fedlane-ledger in the node's configuration"
            )
        path, name = Path(str(given)).expanduser(), client_name(self.name, context)
        if create and not path.exists():
            new_ledger(path, name)
        return open_ledger(path, name)


def lane_app(make: Callable[[Context], LaneClient]) -> ClientApp:
    """Return a ClientApp whose settings depend on the node's or the run's configuration.

    Args:
        make: Function of Flower's context that returns the client; called for every message.

    Returns:
        A ClientApp that answers TRAIN, QUERY and EVALUATE messages.

    Examples:
        >>> from fedlane.flower import LaneClient, lane_app
        >>> from my_project import Net, my_records  # doctest: +SKIP
        >>> def make_client(context):
        ...     epsilon = context.node_config["epsilon"]
        ...     return LaneClient(model=Net, data=my_records, classes=10, learning_rate=0.3, epsilon=epsilon)
        >>> app = lane_app(make_client)
    """
    app = ClientApp()

    def handler(reply: Callable[[LaneClient, Message, Context], Message]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                with foreign_code():
                    client = make(context)
                return reply(client, message, context)
            except Exception as error:  # Flower would send the server the error's full text
                return error_reply(message, error)

        return handle

    app.train()(handler(LaneClient.train))
    app.query()(handler(LaneClient.query))
    app.evaluate()(handler(LaneClient.evaluate))
    return app


def _report_budget(budget: BudgetReport, account: "PrivacyAccount", uploads: int) -> None:
    terms = account.entry.terms
    budget.uploads, budget.max_uploads = uploads, terms.max_uploads
    budget.epsilon, budget.delta = account.epsilon(uploads), terms.delta


def _model_arrays(content: RecordDict) -> ArrayRecord:
    """Return the only model in a message."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise PublicError(f"a message must contain 1 model, got {len(records)}")
    return records[0]


def _update(upload: "TrainedUpload", size: float) -> RecordDict:
    """Return an update in the form that Flower's strategies expect, with the client's losses if it reports them."""
    content = RecordDict({"arrays": upload.arrays, "metrics": MetricRecord({"num-examples": size})})
    if upload.losses is not None:
        content[LOSSES] = upload.losses.record()
    return content
