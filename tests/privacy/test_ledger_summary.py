"""Opening a long ledger takes as long as what is new, and no damage changes the accounts unnoticed."""

import hashlib
import itertools
import json
import os
import random
import shutil
import threading

import pytest

import fedlane.privacy.ledger as ledger_module
from fedlane.privacy import calibrate
from fedlane.privacy.accountant import check_budget
from fedlane.privacy.ledger import LINE, ClientLedger, LedgerError, read_accounts
from fedlane.privacy.ledger_lines import LedgerState, ledger_line
from fedlane.validate import InputError
from support.client_terms import paper_terms, terms, unsampled_terms
from support.large_ledger import uploads, write_ledger

TERMS = unsampled_terms()
FILES = ("ledger", "ledger.head", "ledger.summary")


def terms_line(dataset, terms=TERMS):
    return {"kind": "terms", "dataset": dataset, "terms": terms.values()}


def opened(path):
    """The client's name and accounts as an opening client sees them."""
    with ClientLedger(path) as ledger:
        return ledger.client, dict(ledger.accounts)


@pytest.fixture
def lines_read(monkeypatch):
    """A function that opens a ledger and returns the number of lines that were verified for it."""
    numbers = []
    real = LedgerState._add
    monkeypatch.setattr(LedgerState, "_add", lambda state, text: (numbers.append(state.count), real(state, text)))

    def count(path):
        numbers.clear()
        opened(path)
        return len(numbers)

    return count


@pytest.fixture
def summarised(tmp_path, monkeypatch):
    """A ledger whose summary covers 20 lines, 6 lines after it, and the accounts of an earlier state of its files."""
    monkeypatch.setattr(ledger_module, "SUMMARY_LINES", 16)
    path = tmp_path / "now" / "ledger"
    path.parent.mkdir()
    histogram = {"kind": "histogram", "dataset": "images", "first": 0, "values": [3.5, -1.0], "last": True}
    write_ledger(path, [terms_line("images"), histogram, terms_line("letters"), *uploads("images", 16)])
    shutil.copytree(path.parent, tmp_path / "without-summary")
    with ClientLedger(path) as ledger:
        ledger.reserve("images", 16, server_count=0)
    shutil.copytree(path.parent, tmp_path / "before")
    with ClientLedger(path) as ledger:
        for round in range(3):
            ledger.reserve("letters", round, server_count=0)
            ledger.reserve("images", round, server_count=0)
    assert {name: account.uploads for name, account in opened(path)[1].items()} == {"images": 20, "letters": 3}
    return path


def test_opening_reads_what_is_new(tmp_path, lines_read):
    """5,000 lines are read once; after that, only the lines since the summary."""
    path = tmp_path / "ledger"
    terms = paper_terms(max_uploads=10**6)
    write_ledger(path, [terms_line("images", terms)])
    assert lines_read(path) == 2
    (tmp_path / "ledger.head").unlink()
    write_ledger(path, [terms_line("images", terms), *uploads("images", 4998)])
    assert lines_read(path) == 5000
    assert lines_read(path) == 1  # the line that holds the summary's digest
    with ClientLedger(path) as ledger:
        for round in range(3):
            ledger.reserve("images", round, server_count=0)
    assert lines_read(path) == 4
    assert opened(path)[1]["images"].uploads == read_accounts(path)[1]["images"].uploads == 5001
    (tmp_path / "ledger.summary").unlink()
    assert lines_read(path) == 5004  # without a summary all lines are read, and it is written again
    assert lines_read(path) == 1


def test_a_summary_is_renewed_as_the_ledger_grows(summarised, lines_read):
    with ClientLedger(summarised) as ledger:
        for round in range(40):
            ledger.reserve("images", round, server_count=0)
    assert lines_read(summarised) == 48
    assert lines_read(summarised) == 1
    assert opened(summarised) == read_accounts(summarised)


def corruptions(folder):
    """Yield a name and a function that damages the files of a ledger, for each of 1,200 kinds of damage or more."""
    chance = random.Random(7)

    def change(name, content):
        return lambda: (folder / name).write_bytes(content)

    for name in FILES:
        whole = (folder / name).read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 200)):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << chance.randrange(8)
            yield f"bit of {name} at {at}", change(name, flipped)
        for size in range(0, len(whole), max(1, len(whole) // 100)):
            yield f"{name} cut to {size}", change(name, whole[:size])
        yield f"{name} doubled", change(name, whole * 2)
        yield f"{name} zeroed", change(name, bytes(len(whole)))
        yield f"{name} removed", (folder / name).unlink
    whole = (folder / "ledger").read_bytes()
    lines = [whole[at : at + LINE] for at in range(0, len(whole), LINE)]
    for first, second in itertools.combinations(range(len(lines)), 2):
        swapped = list(lines)
        swapped[first], swapped[second] = lines[second], lines[first]
        yield f"lines {first} and {second} swapped", change("ledger", b"".join(swapped))
    for number in range(len(lines)):
        yield f"line {number} removed", change("ledger", b"".join(lines[:number] + lines[number + 1 :]))
        yield f"line {number} repeated", change("ledger", b"".join(lines[: number + 1] + lines[number:]))
        values = json.loads(lines[number])
        values.pop("digest")
        forged = ledger_line({**values, "upload": 1}, json.loads(lines[number - 1])["digest"] if number else "")
        yield (
            f"line {number} forged with its digest",
            change("ledger", b"".join([*lines[:number], forged, *lines[number + 1 :]])),
        )


@pytest.mark.slow
def test_every_damage_is_detected_or_leaves_the_accounts_unchanged(summarised, monkeypatch):
    """Single edits of any of the three files: what opens has the right accounts."""
    monkeypatch.setattr(os, "fsync", lambda number: None)  # thousands of them, and no crash
    folder = summarised.parent
    kept = {name: (folder / name).read_bytes() for name in FILES}
    truth = opened(summarised)
    detected = harmless = 0
    for name, damage in corruptions(folder):
        damage()
        try:
            assert opened(summarised) == truth, name
            harmless += 1
        except LedgerError:
            detected += 1
        if (folder / "ledger").exists() and (folder / "ledger").read_bytes()[: len(kept["ledger"])] != kept["ledger"]:
            with pytest.raises(LedgerError):  # the full verification detects every change of the ledger
                read_accounts(summarised)
        for file, content in kept.items():
            (folder / file).write_bytes(content)
    tried = detected + harmless
    assert tried >= 1200
    assert min(detected, harmless) > 100


def test_restored_files_are_detected_in_every_combination(summarised, tmp_path):
    """Only ledger, head and summary restored together are left to the server's count of uploads."""
    folder, truth = summarised.parent, opened(summarised)
    kept = {name: (folder / name).read_bytes() for name in FILES}
    with ClientLedger(summarised) as ledger:  # so that a newer summary exists as well
        for round in range(16):
            ledger.reserve("images", round, server_count=0)
    opened(summarised)
    now, newest = {name: (folder / name).read_bytes() for name in FILES}, opened(summarised)
    for restored in itertools.product((False, True), repeat=3):
        for name, old in zip(FILES, restored, strict=True):
            (folder / name).write_bytes(kept[name] if old else now[name])
        if restored in ((False, False, False), (False, False, True)):
            assert opened(summarised) == newest
        elif all(restored):
            assert opened(summarised) == truth
        else:
            with pytest.raises(LedgerError):
                ClientLedger(summarised)
    (folder / "ledger").unlink()
    (folder / "ledger.head").unlink()
    with pytest.raises(LedgerError, match="exists or existed before"):  # the summary remembers the ledger
        ClientLedger.create(summarised, "client 7")


@pytest.mark.parametrize("line", [0, 1, 5, 20, 24])
def test_a_forged_summary_is_ignored(summarised, line):
    """A summary with correct digests of its own, but which the ledger does not hold."""
    path, truth = summarised.with_name("ledger.summary"), opened(summarised)
    content = summarised.read_bytes()
    forged = json.loads(json.loads(path.read_bytes())["summary"])
    forged["accounts"]["images"]["uploads"] = 1
    forged["line"] = line
    forged["previous"] = json.loads(content[(line - 1) * LINE : line * LINE])["digest"] if line else ""
    text = json.dumps(forged, sort_keys=True)
    path.write_text(json.dumps({"summary": text, "digest": hashlib.sha256(text.encode()).hexdigest()}))
    assert opened(summarised) == truth


def test_a_false_summary_line_is_detected_when_all_lines_are_read(tmp_path):
    path = tmp_path / "ledger"
    write_ledger(path, [terms_line("images"), *uploads("images", 3), {"kind": "summary", "summary": "0" * 64}])
    for read in (opened, read_accounts):
        with pytest.raises(LedgerError, match="inconsistent at line 5: its summary does not match"):
            read(path)


def test_a_line_that_was_never_granted_is_removed(tmp_path, caplog):
    """A disk that is full in the middle of a line: every length, and every later opening."""
    path, head = tmp_path / "ledger", tmp_path / "ledger.head"
    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", TERMS)
        ledger.reserve("images", 0, server_count=0)
    whole, kept = path.read_bytes(), head.read_bytes()
    with ClientLedger(path) as ledger:
        ledger.reserve("images", 1, server_count=0)
    longer, acknowledged = path.read_bytes(), head.read_bytes()
    for size in range(1, LINE, 7):
        path.write_bytes(longer[: len(whole) + size])
        head.write_bytes(kept)
        assert read_accounts(path)[1]["images"].uploads == 1
        caplog.clear()
        with ClientLedger(path) as ledger:
            assert "removed an incomplete last line" in caplog.text
            assert path.read_bytes() == whole
            assert ledger.reserve("images", 1, server_count=1).uploads == 2
        assert path.read_bytes() == longer
        path.write_bytes(longer[: len(whole) + size])  # the head counts the line: an upload may have been sent for it
        head.write_bytes(acknowledged)
        for read in (ClientLedger, read_accounts):
            with pytest.raises(LedgerError, match="bytes are not whole lines"):
                read(path)
        path.write_bytes(longer)


def test_a_short_write_refuses_the_upload_and_the_next_opening_recovers(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", TERMS)
        file = ledger._file

        class FullDisk:
            def __getattr__(self, name):
                return getattr(file, name)

            def write(self, line):
                return file.write(line[:100])

        ledger._file = FullDisk()
        with pytest.raises(LedgerError, match="cannot be written, so the client must not train"):
            ledger.reserve("images", 0, server_count=0)
    with ClientLedger(path) as ledger:
        assert ledger.reserve("images", 0, server_count=0).uploads == 1


@pytest.mark.parametrize("name", FILES)
def test_pipes_and_devices_are_refused_without_waiting(summarised, name):
    path, truth = summarised.with_name(name), opened(summarised)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
        path.unlink()
        make(path)
        answers = []
        for read in (opened, read_accounts):
            try:
                answers.append(read(summarised))
            except LedgerError as error:
                answers.append(str(error))
        if name == "ledger.summary":  # all lines are read instead
            assert answers == [truth, truth]
        else:
            assert all("regular file" in answer or "damaged head" in answer for answer in answers), answers
        if path.is_dir():
            path.rmdir()
            path.touch()


@pytest.mark.parametrize(
    "content",
    [
        bytes(LINE),
        bytes(range(256)) * 4,
        b"\xff" * LINE,
        b"[]".ljust(LINE),
        b"[" * LINE,
        b'"' + b"x" * (LINE - 2) + b'"',
        b"7".ljust(LINE),
        b'{"digest": 5}'.ljust(LINE),
        b'{"digest": "\\ud800"}'.ljust(LINE),
        b'{"digest": {}, "line": []}'.ljust(LINE),
        b"\x7fELF",
        random.Random(0).randbytes(4 * LINE),
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_binary_file_is_refused_in_one_line(tmp_path, content, monkeypatch, capsys):
    from fedlane.cli import main

    path = tmp_path / "ledger"
    path.write_bytes(content)
    for read in (ClientLedger, read_accounts):
        with pytest.raises(LedgerError, match=r"is damaged|is not a client's ledger") as caught:
            read(path)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr("sys.argv", ["fedlane", "privacy", "account", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path.name} is" in line  # without its folder, because a server may see the same text
    assert str(tmp_path) not in line


@pytest.mark.slow
def test_accounts_are_read_while_the_client_writes(tmp_path):
    """No false alarm beside 300 uploads, and the count never goes back."""
    path = tmp_path / "ledger"
    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", TERMS)

        def write():
            for round in range(300):
                ledger.reserve("images", round, server_count=0)

        writer = threading.Thread(target=write)
        writer.start()
        counts = [0]
        while writer.is_alive():
            counts.append(read_accounts(path)[1]["images"].uploads)
        writer.join()
    counts.append(read_accounts(path)[1]["images"].uploads)
    assert counts == sorted(counts)
    assert counts[-1] == 300
    assert len(counts) > 20


def test_a_line_between_the_two_looks_at_the_head_is_no_alarm(tmp_path, monkeypatch):
    """Several uploads between reading the head, the size and the head again."""
    path, real = tmp_path / "ledger", ledger_module.read_head
    with ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", TERMS)

        def busy(target):
            for round in range(3):
                ledger.reserve("images", round, server_count=0)
            head = real(target)
            for round in range(2):
                ledger.reserve("images", round, server_count=0)
            return head

        monkeypatch.setattr(ledger_module, "read_head", busy)
        assert read_accounts(path)[1]["images"].uploads == 5


def test_terms_whose_noise_is_too_small_are_refused(tmp_path):
    """In a new account, and in a ledger of an older version, by whichever call comes first."""
    path = tmp_path / "ledger"
    weak = unsampled_terms(step_noise=1.0, epsilon=2.0, max_uploads=20)
    write_ledger(path, [terms_line("weak", weak), *uploads("weak", 2), terms_line("images")])
    message = r"terms of data set weak.* do not hold: its 20 uploads spend epsilon \d+.* more than the agreed 2"
    with ClientLedger(path) as ledger:
        for use in (
            lambda: ledger.reserve("weak", 2, server_count=0),
            lambda: ledger.histogram("weak", lambda: [1.0]),
            lambda: ledger.open_account("weak", weak),
            lambda: ledger.open_account("weak too", weak),
        ):
            with pytest.raises(LedgerError, match=message) as caught:
                use()
            assert "\n" not in str(caught.value)
        assert ledger.reserve("images", 0, server_count=0).uploads == 1
    assert read_accounts(path)[1]["weak"].uploads == 2
    assert len(path.read_bytes()) == 6 * LINE


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.15, 1.0, 8.0])
def test_calibrated_terms_hold_and_slightly_smaller_noise_does_not(epsilon):
    noise = calibrate(epsilon, 1e-5, sample_rate=0.02, steps=40, histogram_noise=50.0)
    agreed = {
        "sample_rate": 0.02,
        "local_iterations": 4,
        "epsilon": epsilon,
        "max_uploads": 10,
        "histogram_noise": 50.0,
    }
    check_budget(terms(step_noise=noise, **agreed))
    with pytest.raises(InputError, match="more than the agreed"):
        check_budget(terms(step_noise=0.98 * noise, **agreed))
