"""Who takes part: the persistent map from Flower's nodes to clients, and what was asked of each.

What is counted, and why twice:

- ``sent``: orders that were sent, each counted and forced to disk BEFORE it leaves. Every upload that a client may have
  made is among them, so that what is derived from it is never too little.
- ``uploads``: the most that the client itself has ever reported. This is what orders carry as ``server_count``: a
  client's ledger that knows of fewer was put back to an earlier state. An order that never arrived is in ``sent`` and
  in nobody's ledger, so ``sent`` must not be used for that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedlane.flower.protocol import REFUSED, Introduction, Report
from fedlane.records import FloatArray
from fedlane.theory import quotas, theta
from fedlane.validate import InputError, at_least


class RosterError(InputError):
    """A node that may not take part under the name it gives."""


@dataclass(frozen=True)
class Member:
    """One client: its node, what it said of itself, and what is known of its spending."""

    index: int
    """The client's number in policies and tables; never given to another."""
    node_id: int
    introduction: Introduction
    joined_round: int
    sent: int = 0
    unanswered: int = 0
    """Orders sent since its ledger was last heard of: uploads that it may have made and nobody knows of."""
    reports: int = 0
    uploads: int = 0
    epsilon_reported: float = 0.0
    barred: str = ""
    """Why it is not asked any more; empty for a client in good standing."""

    @property
    def name(self) -> str:
        return self.introduction.name

    @property
    def spent(self) -> bool:
        """Whether its budget is known to be used up."""
        return 0 < self.introduction.max_uploads <= self.uploads

    @property
    def epsilon(self) -> float | None:
        """What it has spent at most; None without a mechanism.

        Its own figure where every order was accounted for; otherwise what it agreed to over all its uploads, which its
        ledger does not let it exceed: the server does not know a client's noise and cannot compute what lies between.
        """
        if self.introduction.epsilon <= 0:
            return None
        told = self.epsilon_reported > 0 or not self.uploads
        return self.epsilon_reported if told and not self.unanswered else self._agreed

    @property
    def _agreed(self) -> float:
        return max(self.introduction.epsilon, self.epsilon_reported)

    def ordered(self) -> "Member":
        """After one more order."""
        return replace(self, sent=self.sent + 1, unanswered=self.unanswered + 1)

    def heard(self, report: Report) -> "Member":
        """After a report, be it late. A refusal bars the client.

        Without its ledger's figures (the switch failed, say) a report speaks for its own order, not for earlier ones.
        """
        return replace(
            self,
            reports=self.reports + 1,
            uploads=max(self.uploads, report.uploads),
            epsilon_reported=max(self.epsilon_reported, report.epsilon),
            unanswered=0 if report.max_uploads else max(self.unanswered - 1, 0),
            barred=(report.reason or "refused") if report.status == REFUSED else self.barred,
        )


class Roster:
    """Every client that ever took part, by its node's id. The departed stay, and are known when they come back."""

    def __init__(self, capacity: int, *, trust_names: bool = False) -> None:
        """trust_names: a name may move to a new node while its old one is not connected (no node authentication)."""
        at_least("capacity", capacity, 1)
        self.capacity = capacity
        self.trust_names = trust_names
        self.members: list[Member] = []

    def of_node(self, node_id: int) -> Member | None:
        return next((member for member in self.members if member.node_id == node_id), None)

    def admit(self, node_id: int, introduction: Introduction, round: int, connected: Iterable[int] = ()) -> Member:
        """Enter a node under the name it gives, or renew its introduction; a `RosterError` where that is not its own.

        With node authentication a node's id cannot be forged: whoever comes with another's name is another.
        """
        known = self.of_node(node_id)
        owner = next((member for member in self.members if member.name == introduction.name), None)
        if known is not None and known.name != introduction.name:
            raise RosterError(f"the node is known as {known.name!r} and now calls itself {introduction.name!r}")
        if owner is not None and owner.node_id != node_id:
            if not self.trust_names or owner.node_id in set(connected):
                raise RosterError(f"the name {introduction.name!r} belongs to node {owner.node_id}")
            known = owner
        if known is None:
            if len(self.members) == self.capacity:
                raise RosterError(f"capacity {self.capacity} is reached: {introduction.name!r} cannot be entered")
            known = Member(len(self.members), node_id, introduction, round)
            self.members.append(known)
        return self.put(
            replace(
                known,
                node_id=node_id,
                introduction=introduction,
                uploads=max(known.uploads, introduction.uploads),
                epsilon_reported=max(known.epsilon_reported, introduction.epsilon_spent),
            )
        )

    def put(self, member: Member) -> Member:
        """Replace what is known of a client."""
        self.members[member.index] = member
        return member

    def pardon(self) -> None:
        """A new run of the server asks again whoever refused for another reason than a spent budget."""
        self.members = [member if member.spent else replace(member, barred="") for member in self.members]

    def quotas(self, lanes: int, given: Mapping[str, float] | None = None) -> FloatArray:
        """(1, U): the quota of each client that has joined."""
        if given is not None:
            return np.array([[given.get(member.name, 0.0) for member in self.members]])
        return (
            _quotas([member.introduction for member in self.members], lanes)[None] if self.members else np.zeros((1, 0))
        )

    def values(self) -> list[dict[str, Any]]:
        """As plain values, for a checkpoint."""
        return [asdict(member) for member in self.members]

    def restore(self, values: Iterable[Mapping[str, Any]]) -> None:
        """From plain values; `InputError` where they make no sense."""
        try:
            members = [Member(**{**one, "introduction": _introduction(one["introduction"])}) for one in values]
        except (KeyError, TypeError) as error:
            raise InputError(f"the roster is damaged: {error}") from None
        if [member.index for member in members] != list(range(len(members))) or len(members) > self.capacity:
            raise InputError(f"the roster is damaged, or has more than {self.capacity} clients (capacity)")
        self.members = members


def _introduction(values: Mapping[str, Any]) -> Introduction:
    said = Introduction(**{**values, "label_counts": tuple(values["label_counts"])})
    said.check()
    return said


def _quotas(said: list[Introduction], lanes: int) -> FloatArray:
    """Equation (8) from what clients released: noisy counts are cut at 0; who releases none is taken as average.

    Average in its divergence, that is: with the average's labels and no noise it would have none, and all the rounds.
    """
    labels = max(1, *(len(one.label_counts) for one in said))
    counts = np.zeros((len(said), labels))
    for row, one in zip(counts, said, strict=True):
        row[: len(one.label_counts)] = np.maximum(one.label_counts, 0.0)
    sizes = np.array([one.size for one in said])
    total = counts.sum(axis=1, keepdims=True)
    released = total[:, 0] > 0
    shares = np.full(counts.shape, 1.0 / labels)
    shares[released] = counts[released] / total[released]
    if released.any():
        shares[~released] = np.average(shares[released], axis=0, weights=sizes[released])
    divergence = theta(
        shares,
        sizes,
        1.0,  # the noise is given, so that epsilon and delta do not count
        0.5,
        local_iterations=1,
        batch_size=1,
        noise=np.array([one.upload_noise for one in said]),
    )
    if released.any():
        divergence[~released] = np.maximum(divergence[~released], divergence[released].mean())
    return quotas(divergence, lanes)
