"""A client's ledger file: made once, by hand, and opened by its owner alone."""

from pathlib import Path

from fedlane.privacy.ledger import ClientLedger, LedgerError


def new_ledger(path: str | Path, client: str) -> Path:
    """Make a client's first ledger, once; one that exists or existed is refused. Folders are made where needed."""
    target = Path(path).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"ledger {target} cannot be created: {error.strerror}") from error
    ClientLedger.create(target, client).close()
    return target


def open_ledger(path: Path, client: str) -> ClientLedger:
    """A client's own ledger, locked; close it after use."""
    try:
        ledger = ClientLedger(path)
    except LedgerError as error:
        hint = (
            "" if path.exists() else f"; for a new client, once: fedlane.flower.new_ledger({str(path)!r}, {client!r})"
        )
        raise type(error)(f"{error}{hint}") from error.__cause__
    if ledger.client != client:
        ledger.close()
        raise LedgerError(f"ledger {path} belongs to client {ledger.client!r}, not to {client!r}")
    return ledger
