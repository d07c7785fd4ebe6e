"""The messages between server and clients, as Flower records: their keys, types and checks.

In a round the server sends a TRAIN message with the model and an `Order`, and the client answers with its update and a
`Report`. Before a client's first order the server sends a QUERY message with a `Hello`, and the client answers with an
`Introduction`. Each is one ConfigRecord under the key `fedlane`. A client that reports losses adds a `LossReport` under
a key of its own. A malformed record raises `ProtocolError`.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from flwr.app import ConfigRecord, RecordDict

from fedlane.validate import PublicError

KEY = "fedlane"
"""Key of our record in a message's content."""
LOSSES = "fedlane-losses"
"""Key of the losses that a client reports with its update, if it does."""
VERSION = 1
TRAINED, REFUSED, FAILED = "trained", "refused", "failed"
STATUSES = (TRAINED, REFUSED, FAILED)
"""The update is enclosed; the budget or the ledger forbids any further update; training failed in this round."""
LARGEST, SMALLEST = 1e12, 1e-12
"""Bounds of every honest size, count and noise; sums and quotients of such numbers stay finite."""
LARGEST_COUNT = 2**31 - 1
"""Largest batch size and number of steps or uploads: the largest count that a scenario accepts."""
LONGEST_REASON = 2000


class ProtocolError(PublicError):
    """A message does not follow the protocol. The text quotes nothing but that message."""


@dataclass(frozen=True)
class _WireRecord:
    """Base class of the records: plain values whose types are checked when they are read."""

    key: ClassVar[str] = KEY

    def record(self) -> ConfigRecord:
        """Return the values as a Flower record."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return ConfigRecord({"kind": type(self).__name__, "version": VERSION, **values})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """Read the record from a message; raise `ProtocolError` if it is missing, incomplete or out of bounds."""
        record = content.get(cls.key)
        kind = cls.__name__
        if not isinstance(record, ConfigRecord) or record.get("kind") != kind:
            raise ProtocolError(f"the message carries no {kind}")
        if record.get("version") != VERSION:
            raise ProtocolError(f"the message has protocol version {record.get('version')!r}, expected {VERSION}")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = record.get(field.name)
            if not _fits(value, field.type):
                raise ProtocolError(f"{kind}.{field.name} has the invalid value {value!r}")
            values[field.name] = _converted(value, field.type)
        result = cls(**values)
        result.check()
        return result

    def check(self) -> None:
        """Raise `ProtocolError` if a value is out of bounds."""


def _converted(value: Any, kind: object) -> Any:
    """Return a value that fits in the declared type: a node may send an integer of any size for a float."""
    if kind is float:
        return float(value)
    return tuple(float(number) for number in value) if isinstance(value, list) else value


def _fits(value: object, kind: object) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if kind == tuple[float, ...]:
        return isinstance(value, list) and all(type(v) in (int, float) and math.isfinite(v) for v in value)
    return type(value) is kind


@dataclass(frozen=True)
class Hello(_WireRecord):
    """Server to client: the request for an introduction."""

    federation: str
    """The federation's name, by which a client can distinguish servers."""


@dataclass(frozen=True)
class Introduction(_WireRecord):
    """Client to server: the facts that scheduling needs, all of which the client chooses to release."""

    name: str
    """The client's name, for logs and for its ledger. The server identifies clients by the authenticated node id."""
    size: float
    """Number of records as released: the sum of the noisy histogram if the budget covers one."""
    label_counts: tuple[float, ...]
    """The released label histogram with its noise; empty if the client releases none."""
    epsilon: float
    """The epsilon agreed to over all uploads; 0 for a client without a mechanism."""
    delta: float
    max_uploads: int
    """0 for a client without a budget."""
    uploads: int
    """Number of uploads in its ledger."""
    batch_size: int
    local_iterations: int
    upload_noise: float
    """Standard deviation of an upload's noise in units of eta C, which enters the quotas; 0 without a mechanism."""
    epsilon_spent: float = 0.0
    """Epsilon spent so far by the client's own accounting; before the first upload, that of the label histogram."""

    @classmethod
    def without_budget(
        cls, name: str, size: float, label_counts: Iterable[float], batch_size: int, local_iterations: int
    ) -> "Introduction":
        """Return the introduction of a client without a mechanism: no budget, nothing spent, no noise."""
        counts = tuple(float(count) for count in label_counts)
        return cls(name, float(size), counts, 0.0, 0.0, 0, 0, batch_size, local_iterations, 0.0)

    def check(self) -> None:
        """Raise `ProtocolError` if a value is out of bounds."""
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ProtocolError(f"a client's name must be 1 to 200 printable characters, got {self.name!r}")
        if not SMALLEST <= self.size <= LARGEST or len(self.label_counts) > 100_000:
            raise ProtocolError(f"client {self.name!r} introduces itself with values out of bounds")
        if self.batch_size < 1 or self.local_iterations < 1 or 0 < self.upload_noise < SMALLEST:
            raise ProtocolError(f"client {self.name!r} introduces itself with values out of bounds")
        numbers = (self.epsilon, self.delta, self.max_uploads, self.uploads, self.upload_noise, self.epsilon_spent)
        if min(numbers) < 0:
            raise ProtocolError(f"client {self.name!r} introduces itself with negative values")
        if max(*numbers, *map(abs, self.label_counts)) > LARGEST:
            raise ProtocolError(f"client {self.name!r} introduces itself with values above {LARGEST:g}")
        if max(self.batch_size, self.local_iterations, self.max_uploads, self.uploads) > LARGEST_COUNT:
            raise ProtocolError(f"client {self.name!r} introduces itself with a count above {LARGEST_COUNT:,}")


@dataclass(frozen=True)
class Order(_WireRecord):
    """Server to client, with the model: the order to train in this round and upload over this lane."""

    federation: str
    client: str
    """The name in the server's roster; a client with another name refuses."""
    round: int
    """Number of the round, from 0."""
    lane: int
    deadline_s: float
    iterations: int
    """Number of training steps, tau; a client whose terms have another number refuses."""
    server_count: int
    """Largest number of uploads that the client has reported; a ledger with fewer was restored from an older copy."""

    def check(self) -> None:
        """Raise `ProtocolError` if a value is out of bounds."""
        if min(self.round, self.lane, self.server_count) < 0 or self.iterations < 1 or self.deadline_s <= 0:
            raise ProtocolError("the order has values out of bounds")


@dataclass(frozen=True)
class Report(_WireRecord):
    """Client to server: the outcome of an order, with the update if there is one."""

    client: str
    round: int
    lane: int
    status: str
    reason: str
    """One-line reason why there is no update; empty if the client trained."""
    compute_s: float
    """Seconds from receiving the model until the update is ready, on the client's clock, excluding lane switching."""
    switch_s: float
    """Seconds spent on switching lanes, on the client's clock."""
    uploads: int
    """Number of uploads in the client's ledger, including this one; 0 without a budget."""
    max_uploads: int
    epsilon: float
    """Epsilon spent so far by the client's own accounting; 0 without a mechanism."""
    delta: float

    def check(self) -> None:
        """Raise `ProtocolError` if a value is out of bounds."""
        if self.status not in STATUSES:
            raise ProtocolError(f"a report's status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if min(self.round, self.lane, self.compute_s, self.switch_s, self.uploads, self.max_uploads) < 0:
            raise ProtocolError("the report has negative values")
        if max(self.uploads, self.max_uploads) > LARGEST_COUNT or max(self.compute_s, self.switch_s) > LARGEST:
            raise ProtocolError(f"the report has a count above {LARGEST_COUNT:,} or a time above {LARGEST:g} s")
        if not 0 <= self.epsilon <= LARGEST or not 0 <= self.delta <= 1:
            raise ProtocolError(f"the report has an epsilon outside [0, {LARGEST:g}] or a delta outside [0, 1]")
        if len(self.reason) > LONGEST_REASON:  # every checkpoint may store it
            raise ProtocolError(f"a report's reason must have at most {LONGEST_REASON} characters")


@dataclass(frozen=True)
class LossReport(_WireRecord):
    """Client to server, with an update: the losses of the first step's sample under the model that was sent."""

    key: ClassVar[str] = LOSSES

    mean: float
    """Mean loss of a record; with noise it can be negative."""
    rms: float
    """Root of the mean squared loss."""
    protected: bool
    """Whether the losses are clipped and noised within the client's budget; otherwise they are exact."""

    def check(self) -> None:
        """Raise `ProtocolError` if a value is out of bounds."""
        if not (abs(self.mean) <= LARGEST and 0 <= self.rms <= LARGEST):
            raise ProtocolError(f"the report has losses above {LARGEST:g}")
