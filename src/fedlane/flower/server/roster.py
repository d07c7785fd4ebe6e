"""The roster: the persistent map from Flower's nodes to clients, with the counts of their orders and uploads.

There are two counts, for two purposes:

- ``sent`` counts orders. Each is counted and forced to disk BEFORE it is sent, so that every upload that a client may
  have made is included and no privacy figure derived from it is too small.
- ``uploads`` is the largest number that the client itself has reported. Orders carry it as ``server_count``: a ledger
  with fewer uploads was restored from an older copy. An order that never arrived is counted in ``sent`` but is in no
  ledger, so ``sent`` cannot be used for this.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedlane.flower.protocol import KEY, LARGEST, LARGEST_COUNT, REFUSED, VERSION, Introduction, Report
from fedlane.flower.server.claimed_quotas import claimed_quotas
from fedlane.flower.server.metrics import capped
from fedlane.records import FloatArray
from fedlane.validate import InputError, at_least

MAX_FORMER = 16
"""Number of former nodes of a name that are remembered."""


class RosterError(InputError):
    """A node may not take part under the name that it gives."""

    def __init__(self, reason: str, holder: int | None = None) -> None:
        """``holder`` is the node whose leaving would free the name; None if waiting for that does not help."""
        super().__init__(reason)
        self.holder = holder


@dataclass(frozen=True)
class FormerNode:
    """What a node had reported when its name moved to another node; it applies again if the node comes back."""

    node_id: int
    uploads: int
    epsilon_reported: float
    unanswered: int
    barred: str


@dataclass(frozen=True)
class Member:
    """One client: its node, its introduction, and what is known about its spending."""

    index: int
    """The client's number in policies and tables; it is never reused for another client."""
    node_id: int
    introduction: Introduction
    joined_round: int
    sent: int = 0
    """Number of orders sent."""
    unanswered: int = 0
    """Number of orders since the client last reported its ledger; each may have become an upload."""
    reports: int = 0
    uploads: int = 0
    """Largest number of uploads that the client has reported."""
    epsilon_reported: float = 0.0
    barred: str = ""
    """Why the client gets no more orders; empty for a client in good standing."""
    former: tuple[FormerNode, ...] = ()
    """The nodes that had this name before, oldest first; only with `trust_names`."""

    @property
    def name(self) -> str:
        """The client's name."""
        return self.introduction.name

    @property
    def spent(self) -> bool:
        """Whether its budget is known to be spent."""
        return 0 < self.introduction.max_uploads <= self.uploads

    @property
    def private(self) -> bool:
        """Whether it has a privacy mechanism."""
        return self.introduction.epsilon > 0

    @property
    def epsilon(self) -> float | None:
        """The epsilon that it has spent, by its own ledger; None without a mechanism, or if it is unreported.

        It is unreported while an order has not been answered: the client may have uploaded once more, and the server,
        which knows neither its noise nor its number of records exactly, cannot compute what that costs. The last
        figure may be too small then, and the epsilon agreed to over all uploads says nothing about what was spent.
        """
        reported = self.epsilon_reported > 0 or not self.uploads
        return self.epsilon_reported if self.private and reported and not self.unanswered else None

    def ordered(self) -> "Member":
        """Return the client after one more order."""
        return replace(self, sent=self.sent + 1, unanswered=self.unanswered + 1)

    def heard(self, report: Report) -> "Member":
        """Return the client after a report, punctual or late. A refusal bars the client.

        A report without the ledger's figures, for example after a failed switch, answers its own order but says nothing
        about earlier ones.
        """
        return replace(
            self,
            reports=self.reports + 1,
            uploads=self.credible(report.uploads),
            epsilon_reported=max(self.epsilon_reported, report.epsilon),
            unanswered=0 if report.max_uploads else max(self.unanswered - 1, 0),
            barred=(report.reason or "refused") if report.status == REFUSED else self.barred,
        )

    def credible(self, uploads: int) -> int:
        """Return the count of uploads after a node has reported one.

        If the name came from another node, the count grows at most by the orders that were not answered yet. Without
        this limit, a node could take a name and claim a count that makes its owner refuse all further orders.
        """
        largest = self.uploads + self.unanswered if self.former else uploads
        return max(self.uploads, min(uploads, largest))

    def moved(self) -> "Member":
        """Return the client before its name moves to a new node."""
        last = FormerNode(self.node_id, self.uploads, self.epsilon_reported, self.unanswered, self.barred)
        return replace(self, former=(*self.former, last)[:MAX_FORMER])

    def returned(self, node_id: int) -> "Member | None":
        """Return the client as a former node left it, or None if the node never had the name."""
        for number, node in enumerate(self.former):
            if node.node_id == node_id:
                return replace(self, **asdict(node), former=self.former[:number])
        return None


class Roster:
    """Every client that has ever taken part. A client that leaves stays in it and is recognised when it returns."""

    def __init__(self, capacity: int, *, trust_names: bool = False) -> None:
        """With ``trust_names``, a name may move to a new node while its old node is not connected.

        If the old node comes back, the name returns to it at once, with the counts that it had reported itself.
        """
        at_least("capacity", capacity, 1)
        self.capacity = capacity
        self.trust_names = trust_names
        self.members: list[Member] = []

    def of_node(self, node_id: int) -> Member | None:
        """Return the client of a node, or None."""
        return next((member for member in self.members if member.node_id == node_id), None)

    def admit(self, node_id: int, introduction: Introduction, round: int, connected: Iterable[int] = ()) -> Member:
        """Enter a node under the name in its introduction, or renew the introduction of a node already entered.

        With node authentication an id cannot be forged, so a new id with an existing name is another node.

        Raises:
            RosterError: The name belongs to another node, the node has another name, or the roster is full.
        """
        client = self.of_node(node_id)
        owner = next((member for member in self.members if member.name == introduction.name), None)
        if client is not None and client.name != introduction.name:
            raise RosterError(f"the node is client {client.name!r} and now introduces itself as {introduction.name!r}")
        if owner is not None and owner.node_id != node_id:
            client = owner.returned(node_id) if self.trust_names else None
            if client is None:
                if not self.trust_names or owner.node_id in set(connected):
                    holder = owner.node_id if self.trust_names else None
                    raise RosterError(f"the name {introduction.name!r} belongs to node {owner.node_id}", holder)
                client = owner.moved()
        if client is None:
            if len(self.members) == self.capacity:
                raise RosterError(f"capacity {self.capacity} is reached: {introduction.name!r} cannot join")
            client = Member(len(self.members), node_id, introduction, round)
            self.members.append(client)
        return self.put(
            replace(
                client,
                node_id=node_id,
                introduction=introduction,
                uploads=client.credible(introduction.uploads),
                epsilon_reported=max(client.epsilon_reported, introduction.epsilon_spent),
            )
        )

    @property
    def voters(self) -> int:
        """Number of clients that may still send updates."""
        return sum(not member.barred and not member.spent for member in self.members)

    def put(self, member: Member) -> Member:
        """Replace a client's entry with a newer one."""
        self.members[member.index] = member
        return member

    def pardon(self) -> None:
        """Readmit clients that refused for a reason other than a spent budget; called when a run starts."""
        self.members = [member if member.spent else replace(member, barred="") for member in self.members]

    def quotas(self, lanes: int, given: Mapping[str, float] | None = None) -> FloatArray:
        """Return the quota of each client, (1, U): those given by name, or from the introductions."""
        if given is not None:
            return np.array([[given.get(member.name, 0.0) for member in self.members]])
        if not self.members:
            return np.zeros((1, 0))
        return claimed_quotas([member.introduction for member in self.members], lanes)[None]

    def sizes(self) -> FloatArray:
        """Return the number of records of each client, (1, U): its claim, at most 3 times the median claim."""
        return np.array([capped([float(member.introduction.size) for member in self.members])])

    def values(self) -> list[dict[str, Any]]:
        """Return the roster as plain values, for a checkpoint."""
        entries = [asdict(member) for member in self.members]
        return [{name: value for name, value in entry.items() if name != "former" or value} for entry in entries]

    def restore(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Restore the roster from plain values; raise `InputError` if they are damaged."""
        try:
            members = [_member(entry) for entry in values]
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"the roster is damaged: {error}") from None
        for field in ("index", "name", "node_id"):
            if len({getattr(member, field) for member in members}) < len(members):
                raise InputError(f"the roster is damaged: two clients have the same {field}")
        if [member.index for member in members] != list(range(len(members))) or len(members) > self.capacity:
            raise InputError(f"the roster is damaged, or has more clients than capacity, {self.capacity}")
        self.members = members


def _member(values: Mapping[str, Any]) -> Member:
    claims = {"epsilon_spent": 0.0, **values["introduction"]}  # earlier versions did not store it
    content = RecordDict({KEY: ConfigRecord({"kind": "Introduction", "version": VERSION, **claims})})
    former = tuple(FormerNode(**node) for node in values.get("former", ()))
    member = Member(**{**values, "introduction": Introduction.read(content), "former": former})
    _check(member)
    for node in former:
        _check(node)
    return member


def _check(entry: Member | FormerNode) -> None:
    """Raise `ValueError` unless the counts and texts of an entry may have been stored."""
    for name, value in vars(entry).items():
        if name == "barred":
            fits = type(value) is str
        elif name == "epsilon_reported":
            fits = type(value) in (int, float) and 0 <= value <= LARGEST
        elif name not in ("introduction", "former"):
            fits = type(value) is int and 0 <= value <= (2**64 if name == "node_id" else LARGEST_COUNT)
        else:
            continue
        if not fits:
            raise ValueError(f"{name} has the invalid value {value!r}")
