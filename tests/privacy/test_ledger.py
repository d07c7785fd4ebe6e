"""The client's ledger: it never counts too few uploads, whenever the process is killed, and detects damage."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedlane.privacy.ledger import LINE, ClientLedger, LedgerError, read_accounts
from fedlane.validate import InputError
from support.client_terms import unsampled_terms

TERMS = unsampled_terms(max_uploads=6)


@pytest.fixture
def ledger(tmp_path):
    """A ledger with four uploads of one data set."""
    path = tmp_path / "ledger"
    with ClientLedger.create(path, "client 7") as opened:
        opened.open_account("images", TERMS)
        for round in range(4):
            opened.reserve("images", round, server_count=0)
    return path


def uploads(path):
    return read_accounts(path)[1]["images"].uploads


def test_uploads_are_counted_per_data_set_across_sessions(ledger):
    with ClientLedger(ledger) as opened:
        assert opened.client == "client 7"
        opened.open_account("images", TERMS)
        opened.open_account("letters", TERMS)
        opened.reserve("letters", 9, server_count=0)
        account = opened.reserve("images", 4, server_count=4)
        assert (account.uploads, account.left) == (5, 1)
    client, accounts = read_accounts(ledger)
    assert client == "client 7"
    assert {name: entry.uploads for name, entry in accounts.items()} == {"images": 5, "letters": 1}
    assert accounts["images"].terms == TERMS


def test_a_spent_budget_refuses_uploads(ledger):
    with ClientLedger(ledger) as opened:
        opened.reserve("images", 4, server_count=0)
        opened.reserve("images", 5, server_count=0)
        with pytest.raises(LedgerError, match="budget of data set images is spent: 6 uploads of 6"):
            opened.reserve("images", 6, server_count=0)
    assert uploads(ledger) == 6


def test_a_reservation_is_on_disk_before_it_is_returned(ledger, monkeypatch):
    """Ledger and head file are written and synced before `reserve` returns."""
    import fedlane.privacy.ledger as module

    synced = []
    real = os.fsync

    def fsync(number):
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        real(number)

    monkeypatch.setattr(module.os, "fsync", fsync)
    with ClientLedger(ledger) as opened:
        opened.reserve("images", 4, server_count=0)
        assert uploads(ledger) == 5
        assert synced == ["ledger", ".ledger.head", ledger.parent.name]


def test_a_line_stays_within_a_page(ledger):
    content = ledger.read_bytes()
    assert len(content) == 6 * LINE
    assert 4096 % LINE == 0
    assert all(line.endswith(b"}" + b" " * (len(line) - len(line.rstrip()))) for line in content.splitlines())
    with ClientLedger(ledger) as opened, pytest.raises(LedgerError, match="use shorter names"):
        opened.open_account("x" * 300, TERMS)


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
        (lambda path: cut(path, 5 * LINE), "was truncated: it has 5 of 6 lines"),
        (lambda path: cut(path, LINE), "was truncated: it has 1 of 6 lines"),
        (lambda path: cut(path, 0), "is damaged: 0 bytes"),
        (lambda path: path.unlink(), "is missing: without it the budget counts as spent"),
        (lambda path: path.with_name("ledger.head").unlink(), "is missing its head file"),
        (lambda path: path.with_name("ledger.head").write_text("{}"), "has a damaged head file"),
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
        with pytest.raises(LedgerError, match=message):  # reading without locking detects it as well
            read_accounts(ledger)


def test_every_flipped_bit_is_detected(ledger):
    """One bit at each of 200 positions, including digests and padding."""
    whole = ledger.read_bytes()
    for at in range(0, len(whole), len(whole) // 200):
        flip(ledger, at)
        with pytest.raises(LedgerError, match="is damaged"):
            ClientLedger(ledger)
        with pytest.raises(LedgerError, match="is damaged"):
            read_accounts(ledger)
        ledger.write_bytes(whole)
    assert uploads(ledger) == 4


def test_a_restored_ledger_is_detected_by_its_head_or_by_the_server(ledger):
    copy, head = ledger.read_bytes(), ledger.with_name("ledger.head")
    copied_head = head.read_bytes()
    with ClientLedger(ledger) as opened:
        opened.reserve("images", 4, server_count=0)
    ledger.write_bytes(copy)
    with pytest.raises(LedgerError, match="was truncated"):
        ClientLedger(ledger)
    head.write_bytes(copied_head)  # both files restored: only the server can tell
    with ClientLedger(ledger) as opened:
        with pytest.raises(LedgerError, match="was rolled back: it holds 4 uploads of images, the server saw 5"):
            opened.reserve("images", 5, server_count=5)
        assert opened.reserve("images", 5, server_count=4).uploads == 5


def test_a_replaced_ledger_is_detected(ledger, tmp_path):
    other = tmp_path / "other"
    with ClientLedger.create(other, "client 8") as opened:
        opened.open_account("images", TERMS)
        for round in range(4):
            opened.reserve("images", round, server_count=0)
    ledger.write_bytes(other.read_bytes())
    with pytest.raises(LedgerError, match="does not match its head file"):
        ClientLedger(ledger)


def test_a_budget_cannot_be_reset(ledger):
    with pytest.raises(LedgerError, match="exists or existed before"):
        ClientLedger.create(ledger, "client 7")
    ledger.unlink()
    with pytest.raises(LedgerError, match="exists or existed before"):
        ClientLedger.create(ledger, "client 7")
    with pytest.raises(LedgerError, match="cannot be created"):
        ClientLedger.create(ledger.parent / "nowhere" / "ledger", "client 7")


def test_a_forked_process_and_a_changed_file_are_refused(ledger):
    """The lock is shared across a fork: two processes would overwrite each other's lines."""
    with ClientLedger(ledger) as opened:
        pid = os.fork()
        if pid == 0:
            try:
                opened.reserve("images", 4, server_count=0)
            except LedgerError as error:
                os._exit(0 if "opened by another process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert opened.reserve("images", 4, server_count=0).uploads == 5
        with ledger.open("ab") as file:
            file.write(b" " * LINE)
        with pytest.raises(LedgerError, match="changed by another program"):
            opened.reserve("images", 5, server_count=0)
    with pytest.raises(LedgerError, match="is closed"):
        opened.reserve("images", 5, server_count=0)


def test_threads_can_share_a_ledger(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ClientLedger.create(tmp_path / "ledger", "client 7") as opened:
        opened.open_account("images", unsampled_terms(max_uploads=40))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda round: opened.reserve("images", round, server_count=0), range(40)))
    assert uploads(tmp_path / "ledger") == 40


def test_a_histogram_is_drawn_once_and_read_from_disk_later(ledger):
    """60 classes need three lines. If the process dies after two, nothing was released, and a new one is drawn."""
    drawn = []

    def draw():
        drawn.append([float(len(drawn) * 1000 + k) for k in range(60)])
        return drawn[-1]

    with ClientLedger(ledger) as opened:
        first = opened.histogram("images", draw)
        assert opened.histogram("images", draw) == first == tuple(drawn[0])
    with ClientLedger(ledger) as opened:
        assert opened.histogram("images", draw) == first
        opened.reserve("images", 4, server_count=0)
        assert opened.accounts["images"].histogram == first
        opened.open_account("letters", TERMS)
        append, lines = opened._append, []

        def dies(values):
            if len(lines) == 2:
                raise KeyboardInterrupt
            lines.append(values)
            append(values)

        opened._append = dies
        with pytest.raises(KeyboardInterrupt):
            opened.histogram("letters", draw)
    with ClientLedger(ledger) as opened:
        assert opened.histogram("letters", draw) == tuple(drawn[2])
    with ClientLedger(ledger) as opened:
        assert opened.histogram("letters", draw) == tuple(drawn[2])
        assert opened.accounts["images"].uploads == 5
    assert len(drawn) == 3


@pytest.mark.parametrize("count", [-1, 2.0, float("nan"), None])
def test_an_invalid_server_count_is_refused(ledger, count):
    with ClientLedger(ledger) as opened, pytest.raises(LedgerError, match="server_count must be a whole number"):
        opened.reserve("images", 4, server_count=count)


def test_invalid_terms_are_refused_before_they_are_written(ledger):
    with ClientLedger(ledger) as opened, pytest.raises(InputError, match="invalid client terms"):
        opened.open_account("letters", replace(TERMS, step_noise=float("nan")))
    assert uploads(ledger) == 4


def test_terms_do_not_change_and_unknown_data_sets_have_no_account(ledger):
    with ClientLedger(ledger) as opened:
        with pytest.raises(LedgerError, match="terms cannot change"):
            opened.open_account("images", unsampled_terms(max_uploads=6, step_noise=19.0))
        with pytest.raises(LedgerError, match="has no account for data set letters"):
            opened.reserve("letters", 0, server_count=0)


def test_a_ledger_is_locked_while_it_is_open(ledger):
    with ClientLedger(ledger), pytest.raises(LedgerError, match="in use by another process"):
        ClientLedger(ledger)
    with ClientLedger(ledger):
        pass


@pytest.mark.parametrize("change", ["copied", "moved", "removed", "linked"])
def test_a_ledger_that_is_replaced_while_it_is_open_admits_one_writer(ledger, tmp_path, change):
    """An identical copy in the ledger's place has a lock of its own: only one of the two may grant uploads."""
    before = uploads(ledger)
    with ClientLedger(ledger) as first:
        shutil.copy(ledger, tmp_path / "copy")
        if change == "copied":
            (tmp_path / "copy").replace(ledger)
        else:
            ledger.rename(tmp_path / "other")
        if change == "linked":
            ledger.symlink_to(tmp_path / "copy")
        with pytest.raises(LedgerError, match="was moved or replaced by another program"):
            first.reserve("images", 9, server_count=before)
        if change == "copied":
            with ClientLedger(ledger) as second:
                assert second.reserve("images", 9, server_count=before).uploads == before + 1
            with pytest.raises(LedgerError, match="was moved or replaced"):
                first.reserve("images", 9, server_count=before)
            assert uploads(ledger) == before + 1


def test_a_full_disk_stops_the_client(ledger, monkeypatch):
    import fedlane.privacy.ledger as module

    def full(number):
        raise OSError(28, "No space left on device")

    with ClientLedger(ledger) as opened:
        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(LedgerError, match="cannot be written, so the client must not train"):
            opened.reserve("images", 4, server_count=0)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.long), "steps"])
def test_killed_at_any_moment_the_ledger_counts_at_least_what_the_server_saw(tmp_path, kills, capfd):
    """At random moments over all stages, and before and after every write, sync, link and rename."""
    from support.killed_client import kill_repeatedly

    report = kill_repeatedly(tmp_path, kills)
    assert "child:" not in capfd.readouterr().err  # no child ended except by a kill
    assert report["under_counted"] == 0
    assert report["counted"] >= report["seen"] > 0
    if kills != "steps":
        assert report["killed"] >= kills
        assert min(report["stages"].values()) > 0, "every stage must have been hit"
    else:
        assert report["killed"] == 60


@pytest.mark.parametrize("lines", [5, 7])
def test_a_torn_line_is_removed_only_if_the_head_counts_every_line_before_it(ledger, lines):
    """A line is begun after the head counts the one before it, so any other head means damage."""
    whole = ledger.read_bytes()
    torn = whole + b"{" * 100
    digests = {5: json.loads(whole.splitlines()[4])["digest"], 7: "0" * 64}
    ledger.write_bytes(torn)
    ledger.with_name("ledger.head").write_text(json.dumps({"lines": lines, "digest": digests[lines]}))
    for read in (ClientLedger, read_accounts):
        with pytest.raises(LedgerError, match=r"are not whole lines|truncated"):
            read(ledger)
    assert ledger.read_bytes() == torn


def test_a_head_that_lags_behind_is_renewed_when_the_ledger_is_opened(ledger):
    """The client was killed between the line and the head: the line counts, and can no longer be cut off unnoticed."""
    whole = ledger.read_bytes()
    digest = json.loads(whole.splitlines()[4])["digest"]
    ledger.with_name("ledger.head").write_text(json.dumps({"lines": 5, "digest": digest}))
    with ClientLedger(ledger) as opened:
        assert opened.accounts["images"].uploads == 4
    cut(ledger, 5 * LINE)
    for read in (ClientLedger, read_accounts):
        with pytest.raises(LedgerError, match="was truncated: it has 5 of 6 lines"):
            read(ledger)


def test_a_new_ledger_and_its_name_are_on_disk_before_it_is_used(tmp_path, monkeypatch):
    """First the whole line, then the link that gives it its name, then the folder that holds the name."""
    events, real_sync, real_link = [], os.fsync, os.link

    def fsync(number):
        real_sync(number)
        name = Path(f"/proc/self/fd/{number}").readlink().name
        events.append("folder" if name == tmp_path.name else (name, os.fstat(number).st_size))

    def link(source, target):
        events.append("link")
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    with ClientLedger.create(tmp_path / "new", "client 7"):
        assert events[:3] == [(f".new.{os.getpid()}", LINE), "link", "folder"]


def test_a_summary_that_counts_as_many_lines_as_the_ledger_reveals_a_restored_copy(ledger, monkeypatch):
    """A summary is written after one more line. Here ledger and head are those from before it, the summary is not."""
    monkeypatch.setattr("fedlane.privacy.ledger.SUMMARY_LINES", 6)
    head = ledger.with_name("ledger.head")
    copies = ledger.read_bytes(), head.read_bytes()
    with ClientLedger(ledger) as opened:
        opened.reserve("images", 4, server_count=0)
    ledger.write_bytes(copies[0])
    head.write_bytes(copies[1])
    with pytest.raises(LedgerError, match=r"was truncated: it has 6 lines, but its summary file .* after 7"):
        ClientLedger(ledger)
