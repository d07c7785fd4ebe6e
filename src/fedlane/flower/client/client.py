"""LaneClient: a ClientApp that trains a user's own model privately, counts what it spends, and says what it did.

Every Flower message starts a process of its own, so PyTorch and the accountant are imported where they are needed: a
question is answered sooner, and what the imports take is counted as compute time, not as the network's.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.client.reply import BudgetReport, Refusal, answer_hello, answer_order, client_name, error_reply
from fedlane.flower.client.switch import LaneSwitch, switch_node
from fedlane.flower.protocol import Introduction, Order
from fedlane.validate import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from fedlane.flower.client.training import PrivacyAccount, TrainingTerms
    from fedlane.flower.client.weights import ModelSource
    from fedlane.privacy.ledger import ClientLedger
    from fedlane.records import IntArray

Data = Callable[[Context], tuple[Any, Any]]
"""Inputs (n, planes, height, width), or (n, ...) as the model takes them, bytes or floats; and labels (n,)."""


@dataclass(frozen=True, kw_only=True)
class LaneClient:
    """One client: its model, its records, its terms.

    `app()` makes a ClientApp of it; where settings depend on the node or the run, see `lane_app`.
    """

    model: "ModelSource"
    """Made without arguments: the class of a `torch.nn.Module`, or a function; or a built-in: mlp, cnn, softmax."""
    data: Data
    classes: int
    learning_rate: float
    epsilon: float | None
    """Agreed to over all uploads and the label histogram's release; None: no privacy, and no ledger."""
    delta: float = 1e-5
    max_uploads: int = 100
    clip_norm: float = 1.0
    batch_size: int = 32
    local_iterations: int = 5
    ledger: str | Path | None = None
    """The ledger's file; by default `fedlane-ledger` of the node's configuration."""
    dataset: str = "data"
    """The data set's name in the ledger. The same records under another name are charged anew: do not rename."""
    name: str | None = None
    """By default `fedlane-name` of the node's configuration, else client-PARTITION, else node-ID."""
    federation: str | None = None
    """Orders from any other federation are refused; None: any is served."""
    switch: LaneSwitch | None = None
    """By default the command `fedlane-switch` of the node's configuration, as "modem-band --to {lane}"; else none."""
    evaluate_on: Data | None = None
    """Samples on which the server may have the model evaluated. The figures are exact: their privacy is not covered."""
    create_ledger: bool = False
    """Make the ledger, if there is none, when the server first asks who this is; never when it orders an upload."""
    histogram_noise: float = 10.0
    least_noise: float = 0.5

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"classes must be at least 2, got {self.classes}")

    def app(self) -> ClientApp:
        """A ClientApp that trains, introduces itself and evaluates."""
        return lane_app(lambda context: self)

    def train(self, message: Message, context: Context) -> Message:
        """Answer an order."""
        return answer_order(
            message,
            name=client_name(self.name, context),
            iterations=self.local_iterations,
            federation=self.federation,
            switch=partial(switch_node, self.switch, context.node_config),
            work=lambda order, spending: self._work(order, spending, message.content, context),
        )

    def query(self, message: Message, context: Context) -> Message:
        """Say who this is."""
        return answer_hello(message, self.federation, lambda: self._introduction(context))

    def evaluate(self, message: Message, context: Context) -> Message:
        """Loss and accuracy of the server's model, where the client allows it."""
        if self.epsilon is not None and self.evaluate_on is None:
            raise InputError("a private client reports no loss or accuracy: its budget does not cover it (evaluate_on)")
        from fedlane.flower.client.weights import evaluate_arrays

        inputs, labels = (self.evaluate_on or self.data)(context)
        figures = evaluate_arrays(self.model, _arrays(message.content), inputs, labels, self.classes)
        metrics = MetricRecord({**figures, "num-examples": len(labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def _work(self, order: Order, spending: BudgetReport, content: RecordDict, context: Context) -> RecordDict:
        """Train for an order. Everything that can fail is tried before the ledger is charged."""
        from fedlane.flower.client.training import LocalTrainer
        from fedlane.flower.client.weights import build_model, original_shape
        from fedlane.privacy.ledger import LedgerError, LedgerInUseError

        recipe = self._recipe()
        inputs, labels, counts = self._records(context)
        model = build_model(self.model, original_shape(inputs), self.classes)
        sent = {name: array.numpy() for name, array in _arrays(content).items()}
        pupil = LocalTrainer.of(model, sent, inputs, labels, self.classes)
        if recipe.epsilon is None:
            return _update(pupil.trained_plainly(recipe), len(labels))
        try:
            with closing(self._open(context, create=False)) as ledger:  # held while training: one upload at a time
                books = self._books(ledger, recipe, counts)
                self._tell(spending, books, books.account.uploads)
                account = ledger.reserve(self.dataset, order.round, server_count=order.server_count)
                self._tell(spending, books, account.uploads)
                return _update(pupil.trained_privately(books, recipe.learning_rate), books.size)
        except LedgerInUseError:
            raise
        except LedgerError as error:
            raise Refusal(str(error)) from error

    def _introduction(self, context: Context) -> Introduction:
        recipe = self._recipe()
        name = client_name(self.name, context)
        _, labels, counts = self._records(context)
        if recipe.epsilon is None:
            return Introduction.without_budget(name, len(labels), counts, self.batch_size, self.local_iterations)
        with closing(self._open(context, create=self.create_ledger)) as ledger:
            books = self._books(ledger, recipe, counts)
            # Seconds the first time: rather now than while a lane waits.
            spent = books.epsilon(books.account.uploads)
            return Introduction(
                name=name,
                size=books.size,
                label_counts=tuple(max(0.0, count) for count in books.histogram),
                epsilon=recipe.epsilon,
                delta=recipe.delta,
                max_uploads=recipe.max_uploads,
                uploads=books.account.uploads,
                batch_size=self.batch_size,
                local_iterations=self.local_iterations,
                upload_noise=books.upload_noise,
                epsilon_spent=spent,
            )

    def _recipe(self) -> "TrainingTerms":
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
        )

    def _records(self, context: Context) -> "tuple[Tensor, Tensor, IntArray]":
        """Inputs, labels and label counts."""
        import numpy as np

        from fedlane.flower.client.weights import as_stored

        inputs, labels = as_stored(*self.data(context), self.classes)
        return inputs, labels, np.bincount(labels.numpy(), minlength=self.classes)

    def _open(self, context: Context, *, create: bool) -> "ClientLedger":
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

    def _books(self, ledger: "ClientLedger", recipe: "TrainingTerms", counts: "IntArray") -> "PrivacyAccount":
        from fedlane.flower.client.training import open_privacy_account

        return open_privacy_account(ledger, self.dataset, recipe, counts)

    @staticmethod
    def _tell(spending: BudgetReport, books: "PrivacyAccount", uploads: int) -> None:
        terms = books.account.terms
        spending.uploads, spending.max_uploads = uploads, terms.max_uploads
        spending.epsilon, spending.delta = books.epsilon(uploads), terms.delta


def lane_app(make: Callable[[Context], LaneClient]) -> ClientApp:
    """A ClientApp whose client is made for every message, from the node's and the run's configuration."""
    app = ClientApp()

    def answering(answer: Callable[[LaneClient, Message, Context], Message]) -> Callable[[Message, Context], Message]:
        def answered(message: Message, context: Context) -> Message:
            try:
                return answer(make(context), message, context)
            except Exception as error:  # Flower would tell the server the error's own words
                return error_reply(message, error)

        return answered

    app.train()(answering(LaneClient.train))
    app.query()(answering(LaneClient.query))
    app.evaluate()(answering(LaneClient.evaluate))
    return app


def _arrays(content: RecordDict) -> ArrayRecord:
    """The one model in a message."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise InputError(f"a message must carry 1 model, got {len(found)}")
    return found[0]


def _update(arrays: ArrayRecord, size: float) -> RecordDict:
    """An update as Flower's own strategies expect it."""
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": size})})
