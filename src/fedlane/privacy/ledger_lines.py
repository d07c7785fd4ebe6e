"""The lines of a client's ledger: 512 bytes of JSON each, chained by digests, and the accounts computed from them."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlane.privacy.accountant import Terms
from fedlane.validate import InputError

LINE = 512
"""Bytes of a line: a divisor of every page size."""


class LedgerError(InputError):
    """The ledger cannot be trusted, or the budget is spent: the client must not train."""


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


def read_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """Return the lines of a ledger, each verified against its digest and the previous line."""
    if not content or len(content) % LINE:
        raise LedgerError(f"ledger {path} is damaged: {len(content)} bytes are not whole lines of {LINE}")
    lines: list[dict[str, Any]] = []
    previous_digest = ""
    for number in range(len(content) // LINE):
        text = content[number * LINE : (number + 1) * LINE]
        try:
            values = json.loads(text)
            digest = values.pop("digest")
        except (ValueError, KeyError, AttributeError):
            raise LedgerError(f"ledger {path} is damaged at line {number}") from None
        if ledger_line(values, previous_digest) != text or values.get("line") != number:
            raise LedgerError(f"ledger {path} is damaged at line {number}: the digest does not match")
        lines.append({**values, "digest": digest})
        previous_digest = digest
    return lines


def replay(path: Path, lines: list[dict[str, Any]]) -> tuple[str, dict[str, Account]]:
    """Return the client's name and its accounts from verified lines."""
    if lines[0].get("kind") != "ledger":
        raise LedgerError(f"{path} is not a client's ledger")
    accounts: dict[str, Account] = {}
    parts: dict[str, list[float]] = {}
    for line in lines[1:]:
        try:
            dataset = line["dataset"]
            if line["kind"] == "terms":
                terms = Terms.from_values(line["terms"])
                if accounts.setdefault(dataset, Account(terms, 0)).terms != terms:
                    raise KeyError(f"terms of {dataset} changed")
            elif line["kind"] == "upload":
                account = accounts[dataset]
                accounts[dataset] = replace(account, uploads=max(account.uploads + 1, int(line["upload"])))
            elif line["kind"] == "histogram":
                parts[dataset] = [*(parts.get(dataset, []) if line["first"] else []), *line["values"]]
                if line["last"]:
                    accounts[dataset] = replace(accounts[dataset], histogram=tuple(parts[dataset]))
            else:
                raise KeyError(line["kind"])
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise LedgerError(f"ledger {path} is inconsistent at line {line['line']}: {error}") from None
    return str(lines[0].get("client")), accounts
