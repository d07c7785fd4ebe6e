"""The lines of a client's ledger: 512 bytes of JSON each, chained by digests, and the accounts computed from them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from fedlane.privacy.accountant import Terms
from fedlane.validate import PublicError

LINE = 512
"""Bytes of a line: a divisor of every page size."""
LINES_PER_READ = 4096


class LedgerError(PublicError):
    """The ledger cannot be trusted, or the budget is spent: the client must not train. The text has no folders."""


class LedgerInUseError(LedgerError):
    """Another process has the ledger open: the client must not train now, but may try again later."""


@dataclass(frozen=True)
class Account:
    """The account of one data set in a ledger.

    Attributes:
        terms: The client's terms.
        uploads: Number of uploads charged so far.
        histogram: The noisy label histogram (M,) that was released; None before its release.
    """

    terms: Terms
    uploads: int
    histogram: tuple[float, ...] | None = None

    @property
    def left(self) -> int:
        """Number of uploads that the budget still covers."""
        return max(self.terms.max_uploads - self.uploads, 0)


def ledger_line(values: dict[str, Any], previous_digest: str) -> bytes:
    """Return a line: the values, and a digest of them and of the previous line's digest."""
    text = json.dumps(values, sort_keys=True)
    digest = hashlib.sha256((previous_digest + text).encode()).hexdigest()
    line = json.dumps({**values, "digest": digest}, sort_keys=True).encode()
    if len(line) > LINE - 1:
        raise LedgerError(f"a ledger line holds {LINE} bytes, this one needs {len(line) + 1}: use shorter names")
    return line.ljust(LINE - 1) + b"\n"


class LedgerState:
    """The accounts after some lines of a ledger, each verified against its digest and the line before it.

    Args:
        path: The ledger's file, for error messages.
        client: The client's name; empty before the first line.
        accounts: The accounts after ``count`` lines.
        count: Number of lines that are included.
        digest: Digest of the last of them.

    Attributes:
        lines_read: Number of lines that were read and verified.
        digests: Digests of the lines that were asked for, by the number of lines up to and including them.
    """

    def __init__(
        self,
        path: Path,
        client: str = "",
        accounts: Mapping[str, Account] | None = None,
        count: int = 0,
        digest: str = "",
    ) -> None:
        self.path, self.client, self.count, self.digest = path, client, count, digest
        self.accounts = dict(accounts or {})
        self.lines_read = 0
        self.digests: dict[int, str] = {}
        self._histogram_parts: dict[str, list[float]] = {}

    def read(self, file: BinaryIO, count: int, wanted: Iterable[int] = ()) -> None:
        """Read, verify and apply the lines from the current one up to line ``count``.

        Args:
            file: The ledger, open for reading.
            count: Number of lines of the ledger to include in total.
            wanted: Numbers of lines after which the digest is to be kept in ``digests``.

        Raises:
            LedgerError: A line is damaged or inconsistent.
        """
        kept = frozenset(wanted)
        file.seek(self.count * LINE)
        while self.count < count:
            content = file.read(min(count - self.count, LINES_PER_READ) * LINE)
            if not content or len(content) % LINE:
                raise LedgerError(f"ledger {self.path.name} was changed by another program while it was read")
            for start in range(0, len(content), LINE):
                self._add(content[start : start + LINE])
                if self.count in kept:
                    self.digests[self.count] = self.digest

    def summary(self) -> str:
        """Return all of the state as text: the same text for the same lines, whenever it is made."""
        accounts = {
            dataset: {"terms": account.terms.values(), "uploads": account.uploads, "histogram": account.histogram}
            for dataset, account in self.accounts.items()
        }
        values = {"line": self.count, "previous": self.digest, "client": self.client, "accounts": accounts}
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_summary(cls, path: Path, text: str) -> "LedgerState":
        """Return the state that `summary` wrote.

        Raises:
            ValueError, KeyError, TypeError, AttributeError, RecursionError: The text is no summary.
        """
        values = json.loads(text)
        if values["line"] < 1:
            raise ValueError("a summary includes at least the first line")
        accounts = {
            str(dataset): Account(
                Terms.from_values(entry["terms"]),
                int(entry["uploads"]),
                None if entry["histogram"] is None else tuple(entry["histogram"]),
            )
            for dataset, entry in values["accounts"].items()
        }
        return cls(path, str(values["client"]), accounts, int(values["line"]), str(values["previous"]))

    def _add(self, text: bytes) -> None:
        try:
            values = json.loads(text)
            digest = values.pop("digest")
            intact = ledger_line(values, self.digest) == text and values.get("line") == self.count
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise LedgerError(f"ledger {self.path.name} is damaged at line {self.count}") from None
        if not intact:
            raise LedgerError(f"ledger {self.path.name} is damaged at line {self.count}: the digest does not match")
        if self.count and not self.lines_read and values.get("kind") != "summary":
            raise LedgerError(f"ledger {self.path.name} has no summary at line {self.count}")
        try:
            if self.count == 0:
                self._begin(values)
            else:
                self._apply(values)
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"ledger {self.path.name} is inconsistent at line {self.count}", f": {error}") from None
        self.count, self.digest, self.lines_read = self.count + 1, digest, self.lines_read + 1

    def _begin(self, line: dict[str, Any]) -> None:
        if line.get("kind") != "ledger":
            raise LedgerError(f"{self.path.name} is not a client's ledger")
        self.client = str(line.get("client"))

    def _apply(self, line: dict[str, Any]) -> None:
        if line["kind"] == "summary":
            if line["summary"] != summary_digest(self.summary()):
                raise ValueError("its summary does not match the lines before it")
            self._histogram_parts.clear()  # a histogram that was cut off before a summary is drawn afresh
            return
        dataset, parts = line["dataset"], self._histogram_parts
        if line["kind"] == "terms":
            terms = Terms.from_values(line["terms"])
            if self.accounts.setdefault(dataset, Account(terms, 0)).terms != terms:
                raise ValueError(f"terms of {dataset} changed")
        elif line["kind"] == "upload":
            account = self.accounts[dataset]
            self.accounts[dataset] = replace(account, uploads=max(account.uploads + 1, int(line["upload"])))
        elif line["kind"] == "histogram":
            parts[dataset] = [*(parts.get(dataset, []) if line["first"] else []), *line["values"]]
            if line["last"]:
                self.accounts[dataset] = replace(self.accounts[dataset], histogram=tuple(parts[dataset]))
        else:
            raise KeyError(line["kind"])


def summary_digest(text: str) -> str:
    """Return the digest of a summary, which its ledger holds."""
    return hashlib.sha256(text.encode()).hexdigest()
