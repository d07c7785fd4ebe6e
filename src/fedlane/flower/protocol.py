"""What the base station and a client say to each other, as records of Flower: one place for keys, types and checks.

A round: the server sends a TRAIN message with the model and an `Order`; the client answers with its update and a
`Report`. Before its first order a client is asked who it is (a QUERY message), and answers with an `Introduction`.
Each travels as one ConfigRecord under the key `fedlane`; whatever does not fit is a `ProtocolError`, never a crash.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from fedlane.validate import InputError

KEY = "fedlane"
"""Under which every record of ours lies in a message's content."""
VERSION = 1
TRAINED, REFUSED, FAILED = "trained", "refused", "failed"
STATUSES = (TRAINED, REFUSED, FAILED)
"""An update is enclosed; the budget or the ledger forbids one, for good; something went wrong this time."""
MOST, LEAST = 1e12, 1e-12
"""Beyond these no honest size, count or noise lies, and sums and quotients of them stay finite."""
LONGEST_REASON = 2000


class ProtocolError(InputError):
    """A message that does not fit what was agreed."""


@dataclass(frozen=True)
class _WireRecord:
    """Base of what is said: plain values, checked by type when they are read."""

    def record(self) -> ConfigRecord:
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return ConfigRecord({"kind": type(self).__name__, "version": VERSION, **values})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """What a message says, if it says it completely; anything else is a `ProtocolError`."""
        record = content.get(KEY)
        kind = cls.__name__
        if not isinstance(record, ConfigRecord) or record.get("kind") != kind:
            raise ProtocolError(f"the message carries no {kind}")
        if record.get("version") != VERSION:
            raise ProtocolError(f"the message speaks version {record.get('version')!r}, this side {VERSION}")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = record.get(field.name)
            if not _fits(value, field.type):
                raise ProtocolError(f"{kind}.{field.name} is {value!r}")
            values[field.name] = tuple(value) if isinstance(value, list) else value
        said = cls(**values)
        said.check()
        return said

    def check(self) -> None:
        """Refuse values that make no sense; bounds that any honest side keeps."""


def _fits(value: object, kind: object) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if kind == tuple[float, ...]:
        return isinstance(value, list) and all(type(v) in (int, float) and math.isfinite(v) for v in value)
    return type(value) is kind


@dataclass(frozen=True)
class Hello(_WireRecord):
    """Server to client: who are you, and what have you agreed to?"""

    federation: str
    """The federation's name: what a client's ledger may tell servers apart by."""


@dataclass(frozen=True)
class Introduction(_WireRecord):
    """Client to server: what scheduling needs to know. Everything in it is public by the client's choice."""

    name: str
    """The client's own name, for people and for its ledger. The node's authenticated id decides who it is."""
    size: float
    """Records, as released: the noisy histogram's sum where the budget pays for one."""
    label_counts: tuple[float, ...]
    """The released label histogram, noise included; empty where the client releases none."""
    epsilon: float
    """What the client agreed to over all its uploads; 0 for a client without a mechanism."""
    delta: float
    max_uploads: int
    """0 for a client without a budget."""
    uploads: int
    """Spent so far, by its ledger."""
    batch_size: int
    local_iterations: int
    upload_noise: float
    """The deviation of an upload's noise in units of eta C, which quotas weigh; 0 without a mechanism."""
    epsilon_spent: float = 0.0
    """Spent so far, by the client's own accounting: the label histogram alone before the first upload."""

    @classmethod
    def without_budget(
        cls, name: str, size: float, label_counts: Iterable[float], batch_size: int, local_iterations: int
    ) -> "Introduction":
        """Of a client without a mechanism: nothing agreed to, nothing spent, no noise."""
        counts = tuple(float(count) for count in label_counts)
        return cls(name, float(size), counts, 0.0, 0.0, 0, 0, batch_size, local_iterations, 0.0)

    def check(self) -> None:
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ProtocolError(f"a client's name must be 1 to 200 printable characters, got {self.name!r}")
        if not LEAST <= self.size <= MOST or len(self.label_counts) > 100_000:
            raise ProtocolError(f"client {self.name!r} introduces itself with values out of bounds")
        if self.batch_size < 1 or self.local_iterations < 1 or 0 < self.upload_noise < LEAST:
            raise ProtocolError(f"client {self.name!r} introduces itself with values out of bounds")
        numbers = (self.epsilon, self.delta, self.max_uploads, self.uploads, self.upload_noise, self.epsilon_spent)
        if min(numbers) < 0:
            raise ProtocolError(f"client {self.name!r} introduces itself with negative values")
        if max(*numbers, *map(abs, self.label_counts)) > MOST:
            raise ProtocolError(f"client {self.name!r} introduces itself with values above {MOST:g}")


@dataclass(frozen=True)
class Order(_WireRecord):
    """Server to client, with the model: train for this round, over this lane."""

    federation: str
    client: str
    """The name under which the server knows the node; a client of another name refuses."""
    round: int
    """Starts at 0."""
    lane: int
    deadline_s: float
    iterations: int
    """tau; a client whose terms say another number refuses."""
    server_count: int
    """The most uploads that the client itself has ever reported: a ledger that holds fewer was put back."""

    def check(self) -> None:
        if min(self.round, self.lane, self.server_count) < 0 or self.iterations < 1 or self.deadline_s <= 0:
            raise ProtocolError("an order with values out of bounds")


@dataclass(frozen=True)
class Report(_WireRecord):
    """Client to server, with the update if there is one."""

    client: str
    round: int
    lane: int
    status: str
    reason: str
    """One line; empty where the client trained."""
    compute_s: float
    """From having the model to having the update, on the client's clock; switching lanes not included."""
    switch_s: float
    uploads: int
    """By the client's ledger, this one included; 0 without a budget."""
    max_uploads: int
    epsilon: float
    """Spent so far, by the client's own accounting; 0 without a mechanism."""
    delta: float

    def check(self) -> None:
        if self.status not in STATUSES:
            raise ProtocolError(f"a report's status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if min(self.round, self.lane, self.compute_s, self.switch_s, self.uploads, self.max_uploads) < 0:
            raise ProtocolError("a report with negative values")
        if len(self.reason) > LONGEST_REASON:  # it may be kept, in every checkpoint
            raise ProtocolError(f"a report's reason must have at most {LONGEST_REASON} characters")
