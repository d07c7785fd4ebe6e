"""The client's ledger: never under-counts, whatever is killed; refuses whatever is damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedlane.privacy import Terms
from fedlane.privacy.ledger import LINE, ClientLedger, LedgerError, read_accounts
from fedlane.validate import InputError

TERMS = Terms("rigorous", 0.01, 5, 0.7, 0.0, 8.0, 1e-5, 6, 10.0)


@pytest.fixture
def ledger(tmp_path):
    """A ledger with four uploads of one data set."""
    path = tmp_path / "ledger"
    with ClientLedger.create(path, "client 7") as book:
        book.open_account("images", TERMS)
        for round in range(4):
            book.reserve("images", round, server_count=0)
    return path


def uploads(path):
    return read_accounts(path)[1]["images"].uploads


def test_uploads_are_counted_across_openings_and_per_data_set(ledger):
    with ClientLedger(ledger) as book:
        assert book.client == "client 7"
        book.open_account("images", TERMS)
        book.open_account("letters", TERMS)
        book.reserve("letters", 9, server_count=0)
        account = book.reserve("images", 4, server_count=4)
        assert (account.uploads, account.left) == (5, 1)
    client, accounts = read_accounts(ledger)
    assert client == "client 7"
    assert {name: entry.uploads for name, entry in accounts.items()} == {"images": 5, "letters": 1}
    assert accounts["images"].terms == TERMS


def test_the_budget_s_end_is_the_end(ledger):
    with ClientLedger(ledger) as book:
        book.reserve("images", 4, server_count=0)
        book.reserve("images", 5, server_count=0)
        with pytest.raises(LedgerError, match="budget of data set images is spent: 6 uploads of 6"):
            book.reserve("images", 6, server_count=0)
    assert uploads(ledger) == 6


def test_a_reservation_is_on_disk_before_it_is_given(ledger, monkeypatch):
    """Written and synced, file and head, before `reserve` returns."""
    import fedlane.privacy.ledger as module

    synced = []
    real = os.fsync

    def fsync(number):
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        real(number)

    monkeypatch.setattr(module.os, "fsync", fsync)
    with ClientLedger(ledger) as book:
        book.reserve("images", 4, server_count=0)
        assert uploads(ledger) == 5
        assert synced == ["ledger", ".ledger.head", ledger.parent.name]


def test_a_line_stays_within_a_page(ledger):
    content = ledger.read_bytes()
    assert len(content) == 6 * LINE
    assert 4096 % LINE == 0
    assert all(line.endswith(b"}" + b" " * (len(line) - len(line.rstrip()))) for line in content.splitlines())
    with ClientLedger(ledger) as book, pytest.raises(LedgerError, match="use shorter names"):
        book.open_account("x" * 300, TERMS)


def cut(path, count):
    path.write_bytes(path.read_bytes()[:count])


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: cut(path, 5 * LINE + 100), "is damaged: .* bytes are not whole lines"),
        (lambda path: cut(path, 5 * LINE), "was cut short: 5 lines where 6 were"),
        (lambda path: cut(path, LINE), "was cut short: 1 lines where 6 were"),
        (lambda path: cut(path, 0), "is damaged: 0 bytes"),
        (lambda path: path.unlink(), "is missing: without it the budget counts as spent"),
        (lambda path: path.with_name("ledger.head").unlink(), "has lost its head"),
        (lambda path: path.with_name("ledger.head").write_text("{}"), "has a damaged head"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "is damaged at line 6"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-LINE] + path.read_bytes()[LINE : 2 * LINE]),
            "damaged at line 5",
        ),
        (lambda path: path.write_text("x" * LINE), "is damaged at line 0"),
    ],
)
def test_damage_stops_the_client_with_one_clear_line(ledger, damage, message):
    damage(ledger)
    with pytest.raises(LedgerError, match=message) as caught:
        ClientLedger(ledger)
    assert "\n" not in str(caught.value)
    if "missing" not in message:
        with pytest.raises(LedgerError, match=message):  # nor is it accounted for as if it were whole
            read_accounts(ledger)


def test_every_single_flipped_bit_is_found(ledger):
    """One bit in each of 200 places, digests and padding included."""
    whole = ledger.read_bytes()
    for at in range(0, len(whole), len(whole) // 200):
        flip(ledger, at)
        with pytest.raises(LedgerError, match="is damaged"):
            ClientLedger(ledger)
        with pytest.raises(LedgerError, match="is damaged"):
            read_accounts(ledger)
        ledger.write_bytes(whole)
    assert uploads(ledger) == 4


def test_a_ledger_put_back_from_a_copy_is_found_by_its_head_or_by_the_server(ledger):
    copy, head = ledger.read_bytes(), ledger.with_name("ledger.head")
    copied_head = head.read_bytes()
    with ClientLedger(ledger) as book:
        book.reserve("images", 4, server_count=0)
    ledger.write_bytes(copy)
    with pytest.raises(LedgerError, match="was cut short"):
        ClientLedger(ledger)
    head.write_bytes(copied_head)  # both put back: nothing on this machine can tell
    with ClientLedger(ledger) as book:
        with pytest.raises(LedgerError, match="was rolled back: it holds 4 uploads of images, the server saw 5"):
            book.reserve("images", 5, server_count=5)
        assert book.reserve("images", 5, server_count=4).uploads == 5


def test_another_ledger_in_its_place_is_found(ledger, tmp_path):
    other = tmp_path / "other"
    with ClientLedger.create(other, "client 8") as book:
        book.open_account("images", TERMS)
        for round in range(4):
            book.reserve("images", round, server_count=0)
    ledger.write_bytes(other.read_bytes())
    with pytest.raises(LedgerError, match="do not belong together"):
        ClientLedger(ledger)


def test_a_client_does_not_start_anew(ledger):
    with pytest.raises(LedgerError, match="exists, or existed"):
        ClientLedger.create(ledger, "client 7")
    ledger.unlink()
    with pytest.raises(LedgerError, match="exists, or existed"):
        ClientLedger.create(ledger, "client 7")
    with pytest.raises(LedgerError, match="cannot be created"):
        ClientLedger.create(ledger.parent / "nowhere" / "ledger", "client 7")


def test_a_forked_process_and_a_changed_file_are_refused(ledger):
    """The lock is shared across a fork: two processes would write over each other's lines."""
    with ClientLedger(ledger) as book:
        pid = os.fork()
        if pid == 0:
            try:
                book.reserve("images", 4, server_count=0)
            except LedgerError as error:
                os._exit(0 if "opened by another process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert book.reserve("images", 4, server_count=0).uploads == 5
        with ledger.open("ab") as file:
            file.write(b" " * LINE)
        with pytest.raises(LedgerError, match="changed by somebody else"):
            book.reserve("images", 5, server_count=0)
    with pytest.raises(LedgerError, match="is closed"):
        book.reserve("images", 5, server_count=0)


def test_threads_take_turns(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ClientLedger.create(tmp_path / "ledger", "client 7") as book:
        book.open_account("images", Terms("rigorous", 0.01, 5, 0.7, 0.0, 8.0, 1e-5, 40, 10.0))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda round: book.reserve("images", round, server_count=0), range(40)))
    assert uploads(tmp_path / "ledger") == 40


def test_a_histogram_is_drawn_once_and_released_again_from_disk(ledger):
    """60 classes need three lines; killed after the second, nothing had left yet, and a new one is drawn."""
    drawn = []

    def draw():
        drawn.append([float(len(drawn) * 1000 + k) for k in range(60)])
        return drawn[-1]

    with ClientLedger(ledger) as book:
        first = book.histogram("images", draw)
        assert book.histogram("images", draw) == first == tuple(drawn[0])
    with ClientLedger(ledger) as book:
        assert book.histogram("images", draw) == first
        book.reserve("images", 4, server_count=0)
        assert book.accounts["images"].histogram == first
        book.open_account("letters", TERMS)
        append, lines = book._append, []

        def dies(values):
            if len(lines) == 2:
                raise KeyboardInterrupt
            lines.append(values)
            append(values)

        book._append = dies
        with pytest.raises(KeyboardInterrupt):
            book.histogram("letters", draw)
    with ClientLedger(ledger) as book:
        assert book.histogram("letters", draw) == tuple(drawn[2])
    with ClientLedger(ledger) as book:
        assert book.histogram("letters", draw) == tuple(drawn[2])
        assert book.accounts["images"].uploads == 5
    assert len(drawn) == 3


@pytest.mark.parametrize("count", [-1, 2.0, float("nan"), None])
def test_a_server_count_that_is_none_is_refused(ledger, count):
    with ClientLedger(ledger) as book, pytest.raises(LedgerError, match="server_count must be a whole number"):
        book.reserve("images", 4, server_count=count)


def test_terms_that_make_no_sense_are_refused_before_they_are_written(ledger):
    with ClientLedger(ledger) as book, pytest.raises(InputError, match="no terms of a client"):
        book.open_account("letters", Terms("rigorous", 0.01, 5, float("nan"), 0.0, 8.0, 1e-5, 6, 10.0))
    assert uploads(ledger) == 4


def test_terms_do_not_change_and_unknown_data_sets_have_no_account(ledger):
    with ClientLedger(ledger) as book:
        with pytest.raises(LedgerError, match="terms do not change"):
            book.open_account("images", Terms("rigorous", 0.01, 5, 0.5, 0.0, 8.0, 1e-5, 6, 10.0))
        with pytest.raises(LedgerError, match="has no account for data set letters"):
            book.reserve("letters", 0, server_count=0)


def test_a_second_process_is_kept_out(ledger):
    with ClientLedger(ledger), pytest.raises(LedgerError, match="in use by another process"):
        ClientLedger(ledger)
    with ClientLedger(ledger):
        pass


def test_a_full_disk_stops_the_client(ledger, monkeypatch):
    import fedlane.privacy.ledger as module

    def full(number):
        raise OSError(28, "No space left on device")

    with ClientLedger(ledger) as book:
        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(LedgerError, match="cannot be written, so nothing is trained"):
            book.reserve("images", 4, server_count=0)


@pytest.mark.slow
@pytest.mark.parametrize("kills", ["100", "steps"])
def test_killed_at_any_instant_the_ledger_never_counts_less_than_the_server(tmp_path, kills):
    """100 random instants over all stages; and before and after every write, sync, link and rename."""
    script = Path(__file__).parent.parent / "support" / "killed_client.py"
    done = subprocess.run([sys.executable, script, tmp_path, kills], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "child:" not in done.stderr  # no life ended but by a kill
    report = json.loads(done.stdout)
    assert report["under_counted"] == 0
    assert report["counted"] >= report["seen"] > 0
    if kills == "100":
        assert report["killed"] >= 100
        assert min(report["stages"].values()) > 0, "every stage must have been hit"
    else:
        assert report["killed"] == 60
