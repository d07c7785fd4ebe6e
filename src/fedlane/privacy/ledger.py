"""A client's ledger: an append-only, checksummed record of its uploads on the client's own disk.

A line is written and forced to disk BEFORE the client trains, and it is never removed: an upload that is late, lost or
rejected still counts as spent. Every line has 512 bytes and carries the digest of the line before it. A line lies
within one page of the file and is written by one call, so a process that is killed at any moment leaves it complete or
absent. A second file next to the ledger, PATH.head, holds the number of lines and the last digest, so that a ledger
that was truncated or restored from a copy is detected. If both files were restored, the server's count of the client's
uploads reveals it.

Any damage stops the client with a one-line error: a budget whose ledger cannot be trusted counts as spent. The
exception is damage that cannot change the accounts: opening a ledger verifies the lines since its last summary only
(see `fedlane.privacy.ledger_files`), so a changed line before it is detected by `read_accounts`, which verifies all.
"""

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fedlane.files import open_regular, sync_folder
from fedlane.privacy.accountant import Terms, check_budget
from fedlane.privacy.ledger_files import (
    complete_lines,
    head_path,
    read_head,
    read_state,
    summarised_state,
    summary_path,
    write_head,
    write_summary,
)
from fedlane.privacy.ledger_lines import (
    LINE,
    Account,
    LedgerError,
    LedgerInUseError,
    LedgerState,
    ledger_line,
    summary_digest,
)
from fedlane.validate import InputError

__all__ = ["LINE", "Account", "ClientLedger", "LedgerError", "LedgerInUseError", "read_accounts"]

VALUES_PER_LINE = 24
"""Largest number of histogram counts in one line."""
SUMMARY_LINES = 1024
"""A ledger is summarised when it is opened and at least this number of lines had to be read."""

log = logging.getLogger("fedlane.privacy")


class ClientLedger:
    """The ledger of one client.

    It is a context manager, and locked against other processes while it is open. `create` makes a new ledger.

    Args:
        path: The ledger's file, which must exist.

    Attributes:
        path: The ledger's file.
        client: The client's name.
        accounts: The `Account` of each data set, by name.

    Raises:
        LedgerInUseError: Another process has the ledger open.
        LedgerError: The ledger is missing, damaged, not a regular file, or was rolled back.

    Examples:
        >>> import tempfile
        >>> terms = Terms("rigorous", sample_rate=0.01, local_iterations=5, step_noise=0.9, upload_noise=0.0,
        ...               epsilon=8.0, delta=1e-5, max_uploads=300, histogram_noise=10.0)
        >>> with ClientLedger.create(tempfile.mkdtemp() + "/ledger", "client 7") as ledger:
        ...     account = ledger.open_account("images", terms)
        ...     ledger.reserve("images", 0, server_count=0).left
        299
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._process, self._turn = os.getpid(), threading.RLock()
        self._within_budget: set[Terms] = set()
        try:
            self._file: BinaryIO = open_regular(self.path, writable=True)
        except FileNotFoundError:
            raise LedgerError(f"ledger {self.path.name} is missing: without it the budget counts as spent") from None
        except OSError as error:
            raise LedgerError(f"ledger {self.path.name} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise LedgerInUseError(f"ledger {self.path.name} is in use by another process") from None
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, path: str | Path, client: str) -> "ClientLedger":
        """Create and open the ledger of a new client.

        Args:
            path: File to create.
            client: The client's name in its federation.

        Raises:
            LedgerError: The file, its head or its summary exists, or it cannot be created.
        """
        target = Path(path)
        if any(file.exists() for file in (target, head_path(target), summary_path(target))):
            raise LedgerError(f"ledger {target.name} exists or existed before: a client's budget cannot be reset")
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        line = ledger_line({"line": 0, "kind": "ledger", "client": client, "randomness": "operating system"}, "")
        try:
            with temporary.open("xb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)  # unlike a rename, this never replaces an existing file
        except OSError as error:
            raise LedgerError(f"ledger {target.name} cannot be created: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
        return cls(target)

    def open_account(self, dataset: str, terms: Terms) -> Account:
        """Open the account of a data set, or check that it was opened under the same terms.

        Terms never change: another noise, rate or number of steps would need another privacy proof.

        Args:
            dataset: Name of the data set.
            terms: The client's terms.

        Raises:
            LedgerError: The account has different terms or too little noise for its epsilon, or the ledger cannot be
                written.
            InputError: The terms are invalid.
        """
        with self._turn:
            if dataset not in self.accounts:
                verified = Terms.from_values(terms.values())
                self._check_budget(dataset, verified)
                self._append({"kind": "terms", "dataset": dataset, "terms": verified.values()})
                self.accounts[dataset] = Account(verified, 0)
            elif self.accounts[dataset].terms != terms:
                raise LedgerError(
                    f"ledger {self.path.name} holds different terms for data set {dataset}: "
                    "a client's terms cannot change"
                )
            return self._account(dataset)

    def histogram(self, dataset: str, draw: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """Return the label histogram to release: a new one on the first call, the same one afterwards.

        It is on disk before it is returned, so the noise is never drawn twice for a histogram that may have been sent.

        Args:
            dataset: Name of the data set, which must have an account.
            draw: Returns a noised histogram (M,).
        """
        with self._turn:
            account = self._account(dataset)
            if account.histogram is None:
                values = tuple(round(float(value), 1) for value in draw())
                for first in range(0, len(values), VALUES_PER_LINE):
                    part = list(values[first : first + VALUES_PER_LINE])
                    last = first + VALUES_PER_LINE >= len(values)
                    self._append(
                        {"kind": "histogram", "dataset": dataset, "first": first, "values": part, "last": last}
                    )
                self.accounts[dataset] = replace(account, histogram=values)
                return values
            return account.histogram

    def reserve(self, dataset: str, round: int, *, server_count: int) -> Account:
        """Charge one upload to the budget of a data set. This is irrevocable and must precede training.

        Args:
            dataset: Name of the data set, which must have an account.
            round: The server's round, for the record.
            server_count: Number of this client's uploads of the data set that the server has seen. A larger number
                than the ledger's own means that the ledger was rolled back.

        Returns:
            The account with the upload included.

        Raises:
            LedgerError: The budget is spent, or the ledger was rolled back, changed or cannot be written.
        """
        with self._turn:
            return self._reserve(self._account(dataset), dataset, round, server_count)

    def _account(self, dataset: str) -> Account:
        if dataset not in self.accounts:
            raise LedgerError(f"ledger {self.path.name} has no account for data set {dataset}")
        self._check_budget(dataset, self.accounts[dataset].terms)
        return self.accounts[dataset]

    def _check_budget(self, dataset: str, terms: Terms) -> None:
        """Raise `LedgerError` if the noise of a data set's terms does not keep all uploads within their epsilon."""
        if terms in self._within_budget:
            return
        try:
            check_budget(terms)
        except InputError as error:
            text = f"ledger {self.path.name}: terms of data set {dataset} do not hold"
            raise LedgerError(text, f": {error}") from error
        self._within_budget.add(terms)

    def _reserve(self, account: Account, dataset: str, round: int, server_count: int) -> Account:
        if not isinstance(server_count, int) or server_count < 0:
            raise LedgerError(f"server_count must be a whole number of at least 0, got {server_count}")
        if server_count > account.uploads:
            raise LedgerError(
                f"ledger {self.path.name} was rolled back: it holds {account.uploads} uploads of {dataset}, "
                f"the server saw {server_count}"
            )
        if account.left == 0:
            raise LedgerError(
                f"budget of data set {dataset} is spent: {account.uploads} uploads of {account.terms.max_uploads}"
            )
        self._append({"kind": "upload", "dataset": dataset, "upload": account.uploads + 1, "round": round})
        self.accounts[dataset] = replace(account, uploads=account.uploads + 1)
        return self.accounts[dataset]

    def close(self) -> None:
        """Close the file and release the lock."""
        self._file.close()

    def __enter__(self) -> "ClientLedger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        self._check_place()
        head, size = read_head(self.path), os.fstat(self._file.fileno()).st_size
        count = complete_lines(self.path, size, head, head)
        state = summarised_state(self.path, self._file, count, head) or read_state(
            self.path, self._file, count, head, head
        )
        self.client, self.accounts = state.client, state.accounts
        self._count, self._digest = state.count, state.digest
        if size > count * LINE:
            self._remove_incomplete_line(size - count * LINE)
        if head is None or head["lines"] != count:  # the process was killed between writing the line and the head
            write_head(self.path, self._count, self._digest)
        if state.lines_read >= SUMMARY_LINES:
            self._summarise(state)

    def _remove_incomplete_line(self, size: int) -> None:
        """Remove an incomplete last line, which `complete_lines` has shown to be harmless."""
        os.ftruncate(self._file.fileno(), self._count * LINE)
        os.fsync(self._file.fileno())
        log.warning(
            "ledger %s: removed an incomplete last line of %d bytes, whose upload was never granted", self.path, size
        )

    def _summarise(self, state: LedgerState) -> None:
        """Write the summary's digest into the ledger and then the summary, so that it is never ahead of the ledger."""
        text = state.summary()
        self._append({"kind": "summary", "summary": summary_digest(text)})
        with contextlib.suppress(OSError):  # without it, the next opening reads more lines
            write_summary(self.path, text)

    def _check_place(self) -> None:
        """Raise `LedgerError` unless the locked file is still the one at the ledger's path.

        A copy in its place has a lock of its own, which another process may hold. If the file is replaced after this
        check, the head counts a line that the copy does not have, and the copy is refused.
        """
        try:
            same = os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            same = False
        if not same:
            raise LedgerError(f"ledger {self.path.name} was moved or replaced by another program while it was open")

    def _append(self, values: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            raise LedgerError(f"ledger {self.path.name} was opened by another process: reopen it in this one")
        if self._file.closed:
            raise LedgerError(f"ledger {self.path.name} is closed")
        self._check_place()
        if os.fstat(self._file.fileno()).st_size != self._count * LINE:
            raise LedgerError(f"ledger {self.path.name} was changed by another program while it was open")
        line = ledger_line({"line": self._count, **values}, self._digest)
        try:
            self._file.seek(self._count * LINE)
            if self._file.write(line) != LINE:
                raise OSError("a line was written only in part")
            os.fsync(self._file.fileno())
            self._count, self._digest = self._count + 1, json.loads(line)["digest"]
            write_head(self.path, self._count, self._digest)
        except OSError as error:
            raise LedgerError(
                f"ledger {self.path.name} cannot be written, so the client must not train", f": {error}"
            ) from error


def read_accounts(path: str | Path) -> tuple[str, dict[str, Account]]:
    """Read a client's ledger without locking it, and verify all of its lines, also while the client writes it.

    Args:
        path: The ledger's file.

    Returns:
        The client's name, and the `Account` of each data set by name.

    Raises:
        LedgerError: The ledger is missing, damaged or not a regular file.
    """
    target = Path(path)
    try:
        with open_regular(target) as file:
            before = read_head(target)
            size = os.fstat(file.fileno()).st_size
            after = read_head(target)
            state = read_state(target, file, complete_lines(target, size, before, after), before, after)
    except OSError as error:
        raise LedgerError(f"ledger {target.name} cannot be read: {error.strerror}") from error
    return state.client, state.accounts
