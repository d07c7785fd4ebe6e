"""Files from strangers: links are not followed, pipes are not waited for, and small files stay small in memory."""

import os
import struct
import tracemalloc
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest

from fedlane.files import READ_ERRORS, file_name, load_arrays, open_to_append, write_atomically
from fedlane.privacy import Terms
from fedlane.privacy.ledger import ClientLedger
from fedlane.validate import InputError
from support.parts import missing

TERMS = Terms("paper", 0.5, 2, 0.0, 1.0, 8.0, 1e-3, 100, 0.0)
KINDS = ("link", "dangling link", "pipe", "folder", "file")


def plant(path, kind, victim):
    """Put a link, a pipe, a folder or a file in the place of a file."""
    if path.exists():
        path.unlink()
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(victim.parent / "new")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"left by a crash")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_temporary_files_follow_no_link(tmp_path, kind, durable):
    """The temporary name is known in advance: what a stranger put there is removed, and nothing else is written."""
    import threading

    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    temporary = folder / (".head" if durable else f".head.{os.getpid()}-{threading.get_ident()}")
    plant(temporary, kind, victim)
    if kind == "folder":
        with pytest.raises(OSError, match="directory"):
            write_atomically(folder / "head", b"content", durable=durable)
    else:
        write_atomically(folder / "head", b"content", durable=durable)
        assert (folder / "head").read_bytes() == b"content"
        assert [path.name for path in folder.iterdir()] == ["head"]
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".ledger.head", ".ledger.summary", "ledger.head", "ledger.summary"])
def test_a_ledger_s_folder_with_links_changes_nothing_outside(tmp_path, name, kind):
    path, victim = tmp_path / "client" / "ledger", tmp_path / "victim"
    path.parent.mkdir()
    with ClientLedger.create(path, "c") as ledger:
        ledger.open_account("x", TERMS)
        ledger.reserve("x", 0, server_count=0)
    victim.write_bytes((path.parent / name).read_bytes() if (path.parent / name).exists() else b"precious")
    before = victim.read_bytes()
    plant(path.parent / name, kind, victim)
    try:
        with ClientLedger(path) as ledger:
            ledger.open_account("x", TERMS)
            ledger.reserve("x", 1, server_count=0)
    except InputError:
        pass
    assert victim.read_bytes() == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("name", [".lock", "orders.jsonl", ".federation.npz"])
def test_a_server_s_folder_with_links_changes_nothing_outside(tmp_path, name, kind):
    if find_spec("flwr") is None:
        missing("flwr is not installed (extra flower)")
    from fedlane.flower.server.state_files import Saved, StateStore

    folder, victim = tmp_path / "state", tmp_path / "victim"
    folder.mkdir()
    victim.write_text('{"round": 0, "orders": {}}\nhalf a line')
    plant(folder / name, kind, victim)
    store = StateStore(folder)
    try:
        with store.locked():
            store.journal()
            store.charge(0, {"a": 1})
            store.save(Saved({}, {}))
    except InputError:
        pass
    assert victim.read_text() == '{"round": 0, "orders": {}}\nhalf a line'
    assert not (tmp_path / "new").exists()


def test_appending_follows_no_link_and_waits_for_no_pipe(tmp_path):
    (tmp_path / "victim").write_text("precious")
    for k, kind in enumerate(KINDS[:-1]):
        plant(tmp_path / f"file{k}", kind, tmp_path / "victim")
        with pytest.raises(OSError, match=r"symbolic|regular|directory|device"):
            open_to_append(tmp_path / f"file{k}")
    with open_to_append(tmp_path / "new file") as file:
        file.write(b"line\n")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "new file").read_bytes() == b"line\n"


def archive(path, members):
    """Write an npz file from raw bytes by name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def header(shape, dtype="|u1"):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.slow
def test_compressed_arrays_do_not_fill_the_memory(tmp_path):
    """A megabyte of zeros that were gigabytes, in one array or in many, and headers that promise more than follows."""
    path = tmp_path / "bomb.npz"
    zeros = bytes(100_000_000)
    bombs = [
        {"a.npy": header((100_000_000,)) + zeros},
        {f"{k}.npy": header((10_000_000,)) + zeros[:10_000_000] for k in range(9)},
        {"a.npy": header((2**40,)) + b"0"},
        {"a.npy": header((2**31, 2**31)) + b"0"},
        {"a.npy": header((0, -1)) + b"0"},
        {"a.npy": header((4,), "|O") + b"(lp0\n."},
        {"a.npy": header((8,), "<f8") + b"0" * 63},
        {"a.npy": b"\x93NUMPY\x09\x00" + b"0" * 100},
        {"a.npy": b""},
        {"a.npy": header((4,)).replace(b"}", b"(") + bytes(32)},  # a header that never ends
    ]
    del zeros
    for bomb in bombs:
        archive(path, bomb)
        bomb.clear()
        tracemalloc.start()
        with pytest.raises(READ_ERRORS):
            load_arrays(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
        tracemalloc.stop()
    content = bytearray()
    np.savez(path, a=np.arange(4))
    content[:] = path.read_bytes()
    at = content.index(b"PK\x01\x02") + 8
    content[at] |= 1  # encrypted
    path.write_bytes(content)
    with pytest.raises(READ_ERRORS):
        load_arrays(path)


def test_arrays_are_read_as_they_were_written(tmp_path):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "text": np.array("lane"),
        "none": np.zeros((0, 3), np.int32),
        "truth": np.array(True),
        "equal": np.zeros(1_000_000),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        loaded = load_arrays(tmp_path / "a.npz")
        assert list(loaded) == list(arrays)
        for name, array in arrays.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)


def test_names_of_files_are_short_and_differ():
    assert file_name("mamab-om:V=10") == "mamab-om-V-10"
    long = [file_name("é" * 300), file_name("é" * 301), file_name("x" * 5000)]
    assert len(set(long)) == 3
    assert all(len(name.encode()) <= 150 for name in long)
