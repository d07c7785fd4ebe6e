"""The two files next to a client's ledger: its head, which detects a rollback, and its summary, which saves time.

PATH.head holds the number of lines and the last digest. It is written after every line.

PATH.summary holds the accounts after some line k. It is written after line k + 1, a line of the ledger itself, which
holds the summary's digest and is chained to all later lines and to the head. The accounts in a summary are used only
if they have that digest, and if the chain from that line to the head is intact. So to change what a summary counts,
one must change the ledger from that line to its end and the head as well, which is what it takes without a summary.
"""

import json
from pathlib import Path
from typing import Any, BinaryIO

from fedlane.files import read_regular, write_atomically
from fedlane.privacy.ledger_lines import LINE, LedgerError, LedgerState, summary_digest

LARGEST_HEAD, LARGEST_SUMMARY = 4096, 2**26
"""Bytes of the files that are read at most."""


def head_path(path: Path) -> Path:
    """Return the path of a ledger's head file."""
    return path.with_name(path.name + ".head")


def summary_path(path: Path) -> Path:
    """Return the path of a ledger's summary file."""
    return path.with_name(path.name + ".summary")


def write_head(path: Path, count: int, digest: str) -> None:
    """Write a ledger's head file and force it to disk."""
    write_atomically(head_path(path), json.dumps({"lines": count, "digest": digest}).encode(), durable=True)


def read_head(path: Path) -> dict[str, Any] | None:
    """Return the content of a ledger's head file; None if there is no such file."""
    try:
        head = json.loads(read_regular(head_path(path), LARGEST_HEAD))
        if not (type(head["lines"]) is int and head["lines"] >= 1 and isinstance(head["digest"], str)):
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError(f"ledger {path.name} has a damaged head file {head_path(path).name}") from None
    return dict(head)


def write_summary(path: Path, text: str) -> None:
    """Write a ledger's summary file; the ledger must hold its digest already."""
    content = json.dumps({"summary": text, "digest": summary_digest(text)})
    write_atomically(summary_path(path), content.encode(), durable=True)


def read_summary(path: Path) -> LedgerState | None:
    """Return the state in a ledger's summary file; None if the file is missing or damaged."""
    try:
        stored = json.loads(read_regular(summary_path(path), LARGEST_SUMMARY))
        if stored["digest"] != summary_digest(stored["summary"]):
            return None
        return LedgerState.from_summary(path, stored["summary"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def complete_lines(path: Path, size: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> int:
    """Return the number of complete lines of a ledger of ``size`` bytes.

    A last line that is incomplete, because the disk was full, is harmless if the head counts the complete lines only.
    Proof: a reservation is granted after its line is complete and synced and the head counts it, in this order, and
    the head never counts fewer lines than before. If the head does not count the line, its reservation was never
    granted, and the client did not train for it.

    Args:
        path: The ledger's file.
        size: Its size in bytes.
        before: The head as it was before the size was read.
        after: The head as it was afterwards; the same head if the ledger is locked.

    Raises:
        LedgerError: The ledger is empty, or the head counts the incomplete line.
    """
    count, rest = divmod(size, LINE)
    if not count or (rest and not (before and after and before["lines"] <= count <= after["lines"])):
        raise LedgerError(f"ledger {path.name} is damaged: {size} bytes are not whole lines of {LINE}")
    return count


def read_state(
    path: Path, file: BinaryIO, count: int, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> LedgerState:
    """Return the state of a ledger from all of its lines, compared with its head.

    Lines are added and then counted by the head. If a client writes meanwhile, the number of lines is therefore at
    least that of the head before it was determined, and at most one more than that of the head afterwards.

    Args:
        path: The ledger's file.
        file: The ledger, open for reading.
        count: Its number of complete lines.
        before: The head as it was before ``count`` was determined.
        after: The head as it was afterwards.

    Raises:
        LedgerError: A line is damaged or inconsistent, or the head does not match.
    """
    state = LedgerState(path)
    state.read(file, count, [head["lines"] for head in (before, after) if head])
    check_head(state, before, after)
    return state


def summarised_state(path: Path, file: BinaryIO, count: int, head: dict[str, Any] | None) -> LedgerState | None:
    """Return the state of a ledger from its summary and the lines after it; None if they do not match.

    Raises:
        LedgerError: The summary counts more lines than there are: the ledger was truncated or restored from a copy.
    """
    state = read_summary(path)
    if state is None:
        return None
    if state.count >= count:
        raise LedgerError(
            f"ledger {path.name} was truncated: it has {count} lines, "
            f"but its summary file {summary_path(path).name} was written after {state.count + 1}"
        )
    try:
        state.read(file, count, [head["lines"]] if head else ())
        check_head(state, head, head)
    except LedgerError:  # the caller reads all lines, and so finds out what is wrong
        return None
    return state


def check_head(state: LedgerState, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    """Raise `LedgerError` if a ledger's head does not match its lines; one line may be missing in the head."""
    name = head_path(state.path).name
    if after is None:
        if state.count > 1:
            raise LedgerError(f"ledger {state.path.name} is missing its head file {name}")
        return
    heads = [head for head in (before, after) if head]
    if heads[0]["lines"] > state.count:
        raise LedgerError(f"ledger {state.path.name} was truncated: it has {state.count} of {heads[0]['lines']} lines")
    digests = [state.digests.get(head["lines"], "") for head in heads if head["lines"] <= state.count]
    if after["lines"] < state.count - 1 or digests != [head["digest"] for head in heads][: len(digests)]:
        raise LedgerError(f"ledger {state.path.name} does not match its head file {name}")
