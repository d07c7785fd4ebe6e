"""A client's ledger: what it has spent, append-only and checksummed, on the client's own disk.

A line is written and forced to disk BEFORE the client trains, and is never taken back: an upload that was late, lost
or rejected is spent. Every line is 512 bytes of JSON and carries the digest of the line before it. One line lies within
one page of the file and is written by one call, so that a process killed at any instant leaves it whole or absent; and
a second file beside the ledger, PATH.head, holds the number of lines and the last digest, so that a ledger that was cut
short, or put back from a copy of itself, is noticed. Where both files were put back, the server's own count of the
client's uploads wins.

Whatever is damaged stops the client with one clear line: a ledger that cannot be trusted counts as spent.
"""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fedlane.files import sync_folder, write_atomically
from fedlane.privacy.accountant import Terms
from fedlane.validate import InputError

LINE = 512
"""Bytes of a line: a divisor of every page size."""
VALUES_A_LINE = 24
"""Counts of a histogram on one line."""


class LedgerError(InputError):
    """The ledger cannot be trusted, or the budget is spent: the client must not train."""


class LedgerInUseError(LedgerError):
    """Another process holds the ledger now: the client must not train, but may later."""


@dataclass(frozen=True)
class Account:
    """One data set's part of a ledger."""

    terms: Terms
    uploads: int
    histogram: tuple[float, ...] | None = None
    """The noisy label histogram that was released, if any: the budget pays for one."""

    @property
    def left(self) -> int:
        return max(self.terms.max_uploads - self.uploads, 0)


class ClientLedger:
    """The ledger of one client. Use it as a context: it is locked against a second process while it is open."""

    def __init__(self, path: str | Path) -> None:
        """Open and verify an existing ledger; `create` makes a new one."""
        self.path = Path(path)
        self._process, self._turn = os.getpid(), threading.RLock()
        try:
            self._file: BinaryIO = self.path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise LedgerError(f"ledger {path} is missing: without it the budget counts as spent") from None
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise LedgerInUseError(f"ledger {path} is in use by another process") from None
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, path: str | Path, client: str) -> "ClientLedger":
        """Make a client's first ledger. One that is there already, or has left its head behind, is refused."""
        target = Path(path)
        if target.exists() or _head_path(target).exists():
            raise LedgerError(f"ledger {path} exists, or existed: a client's budget does not start anew")
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        line = _line({"line": 0, "kind": "ledger", "client": client, "randomness": "operating system"}, "")
        try:
            with temporary.open("xb") as file:
                file.write(line)
                os.fsync(file.fileno())
            os.link(temporary, target)  # unlike a rename, this never replaces another's
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be created: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
        return cls(target)

    def open_account(self, dataset: str, terms: Terms) -> Account:
        """The account of a data set, opened under these terms or checked against those it was opened under.

        Terms never change: another noise, rate or number of steps would need another proof.
        """
        with self._turn:
            if dataset not in self.accounts:
                sound = Terms.from_values(terms.values())
                self._append({"kind": "terms", "dataset": dataset, "terms": sound.values()})
                self.accounts[dataset] = Account(sound, 0)
            elif self.accounts[dataset].terms != terms:
                raise LedgerError(
                    f"ledger {self.path} holds other terms for data set {dataset}: a client's terms do not change"
                )
            return self.accounts[dataset]

    def histogram(self, dataset: str, draw: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """The label histogram to release: ``draw()``, noise included, the first time, and the same one ever after.

        It is on disk before it is returned, so that no second noise is ever drawn for what may have left already.
        """
        with self._turn:
            account = self._account(dataset)
            if account.histogram is None:
                values = tuple(round(float(value), 1) for value in draw())
                for first in range(0, len(values), VALUES_A_LINE):
                    part = list(values[first : first + VALUES_A_LINE])
                    last = first + VALUES_A_LINE >= len(values)
                    self._append(
                        {"kind": "histogram", "dataset": dataset, "first": first, "values": part, "last": last}
                    )
                account = Account(account.terms, account.uploads, values)
                self.accounts[dataset] = account
            assert account.histogram is not None
            return account.histogram

    def reserve(self, dataset: str, round: int, *, server_count: int) -> Account:
        """Spend one upload of a data set, for good, before training for it. Refuses when none is left.

        server_count: how many uploads of this client and data set the server has seen. More than this ledger knows of
        means that it was put back to an earlier state.
        """
        with self._turn:
            return self._reserve(self._account(dataset), dataset, round, server_count)

    def _account(self, dataset: str) -> Account:
        if dataset not in self.accounts:
            raise LedgerError(f"ledger {self.path} has no account for data set {dataset}")
        return self.accounts[dataset]

    def _reserve(self, account: Account, dataset: str, round: int, server_count: int) -> Account:
        if not isinstance(server_count, int) or server_count < 0:
            raise LedgerError(f"server_count must be a whole number of at least 0, got {server_count}")
        if server_count > account.uploads:
            raise LedgerError(
                f"ledger {self.path} was rolled back: it holds {account.uploads} uploads of {dataset}, "
                f"the server saw {server_count}"
            )
        if account.left == 0:
            raise LedgerError(
                f"budget of data set {dataset} is spent: {account.uploads} uploads of {account.terms.max_uploads}"
            )
        self._append({"kind": "upload", "dataset": dataset, "upload": account.uploads + 1, "round": round})
        self.accounts[dataset] = Account(account.terms, account.uploads + 1, account.histogram)
        return self.accounts[dataset]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "ClientLedger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        lines = read_lines(self.path, self._file.read())
        self.client, self.accounts = _replay(self.path, lines)
        self._count, self._digest = len(lines), lines[-1]["digest"]
        if not _has_its_head(self.path, lines):  # killed between the line and its head
            self._write_head()

    def _append(self, values: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            raise LedgerError(f"ledger {self.path} was opened by another process: open it again in this one")
        if self._file.closed:
            raise LedgerError(f"ledger {self.path} is closed")
        if os.fstat(self._file.fileno()).st_size != self._count * LINE:
            raise LedgerError(f"ledger {self.path} was changed by somebody else while it was open")
        line = _line({"line": self._count, **values}, self._digest)
        try:
            self._file.seek(self._count * LINE)
            if self._file.write(line) != LINE:
                raise OSError("a line was not written whole")
            os.fsync(self._file.fileno())
            self._count, self._digest = self._count + 1, json.loads(line)["digest"]
            self._write_head()
        except OSError as error:
            raise LedgerError(f"ledger {self.path} cannot be written, so nothing is trained: {error}") from error

    def _write_head(self) -> None:
        head = json.dumps({"lines": self._count, "digest": self._digest})
        write_atomically(_head_path(self.path), head.encode(), durable=True)


def read_accounts(path: str | Path) -> tuple[str, dict[str, Account]]:
    """A client ledger's client and accounts, verified line by line, without locking it."""
    target = Path(path)
    try:
        content = target.read_bytes()
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from error
    lines = read_lines(target, content)
    _has_its_head(target, lines)
    return _replay(target, lines)


def _has_its_head(path: Path, lines: list[dict[str, Any]]) -> bool:
    """Whether the head is that of the last line; False where it lags one behind. Anything else is a `LedgerError`."""
    head, name = _read_head(path), _head_path(path).name
    if head is None:
        if len(lines) > 1:
            raise LedgerError(f"ledger {path} has lost its head {name}")
        return False
    if head["lines"] > len(lines):
        raise LedgerError(f"ledger {path} was cut short: {len(lines)} lines where {head['lines']} were")
    if head["lines"] < len(lines) - 1 or lines[head["lines"] - 1]["digest"] != head["digest"]:
        raise LedgerError(f"ledger {path} and its head {name} do not belong together")
    return bool(head["lines"] == len(lines))


def read_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """A ledger's lines, each checked against its digest and the line before it."""
    if not content or len(content) % LINE:
        raise LedgerError(f"ledger {path} is damaged: {len(content)} bytes are not whole lines of {LINE}")
    lines: list[dict[str, Any]] = []
    before = ""
    for number in range(len(content) // LINE):
        text = content[number * LINE : (number + 1) * LINE]
        try:
            values = json.loads(text)
            digest = values.pop("digest")
        except (ValueError, KeyError, AttributeError):
            raise LedgerError(f"ledger {path} is damaged at line {number}") from None
        if _line(values, before) != text or values.get("line") != number:
            raise LedgerError(f"ledger {path} is damaged at line {number}: its digest does not fit")
        lines.append({**values, "digest": digest})
        before = digest
    return lines


def _replay(path: Path, lines: list[dict[str, Any]]) -> tuple[str, dict[str, Account]]:
    """The client and its accounts, from verified lines."""
    if lines[0].get("kind") != "ledger":
        raise LedgerError(f"{path} is not a client's ledger")
    accounts: dict[str, Account] = {}
    parts: dict[str, list[float]] = {}
    for line in lines[1:]:
        try:
            dataset = line["dataset"]
            if line["kind"] == "terms":
                if dataset in accounts and accounts[dataset].terms != Terms.from_values(line["terms"]):
                    raise KeyError(f"terms of {dataset} changed")
                accounts.setdefault(dataset, Account(Terms.from_values(line["terms"]), 0))
            elif line["kind"] == "upload":
                known = accounts[dataset]
                uploads = max(known.uploads + 1, int(line["upload"]))
                accounts[dataset] = Account(known.terms, uploads, known.histogram)
            elif line["kind"] == "histogram":
                parts[dataset] = [*(parts.get(dataset, []) if line["first"] else []), *line["values"]]
                if line["last"]:
                    known = accounts[dataset]
                    accounts[dataset] = Account(known.terms, known.uploads, tuple(parts[dataset]))
            else:
                raise KeyError(line["kind"])
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise LedgerError(f"ledger {path} makes no sense at line {line['line']}: {error}") from None
    return str(lines[0].get("client")), accounts


def _line(values: dict[str, Any], before: str) -> bytes:
    """A line of 512 bytes: the values, and a digest over them and the digest of the line before."""
    text = json.dumps(values, sort_keys=True)
    digest = hashlib.sha256((before + text).encode()).hexdigest()
    line = json.dumps({**values, "digest": digest}, sort_keys=True).encode()
    if len(line) > LINE - 1:
        raise LedgerError(f"a ledger's line holds {LINE} bytes, and this one needs {len(line) + 1}: use shorter names")
    return line.ljust(LINE - 1) + b"\n"


def _head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _read_head(path: Path) -> dict[str, Any] | None:
    """The head beside a ledger; None where there is none."""
    try:
        head = json.loads(_head_path(path).read_bytes())
        if not (isinstance(head["lines"], int) and head["lines"] >= 1 and isinstance(head["digest"], str)):
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerError(f"ledger {path} has a damaged head {_head_path(path).name}") from None
    return dict(head)
