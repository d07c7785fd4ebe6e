"""A client's ledger file: its owner creates it once, and only its owner opens it."""

from pathlib import Path

from fedlane.privacy.ledger import ClientLedger, LedgerError


def new_ledger(path: str | Path, client: str) -> Path:
    """Create the ledger of a new client.

    Args:
        path: Path of the new file; missing folders are created.
        client: Name of the client.

    Returns:
        The path, with `~` expanded.

    Raises:
        LedgerError: If the ledger exists, existed before, or cannot be created.

    Examples:
        >>> import tempfile
        >>> from fedlane.flower import new_ledger
        >>> path = new_ledger(f"{tempfile.mkdtemp()}/my.ledger", "client-0")
    """
    target = Path(path).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"ledger {target.name} cannot be created: {error.strerror}") from error
    ClientLedger.create(target, client).close()
    return target


def open_ledger(path: Path, client: str) -> ClientLedger:
    """Open and lock a client's ledger; the caller closes it."""
    try:
        ledger = ClientLedger(path)
    except LedgerError as error:
        hint = (
            "" if path.exists() else f"; for a new client, create it once: fedlane.flower.new_ledger(..., {client!r})"
        )
        raise type(error)(error.public + hint, error.detail) from error.__cause__
    if ledger.client != client:
        ledger.close()
        raise LedgerError(f"ledger {path.name} belongs to another client", f": to {ledger.client!r}, not to {client!r}")
    return ledger
