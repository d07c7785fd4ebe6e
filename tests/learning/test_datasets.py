"""Data sets: real files, damaged files, and downloads from a faulty server."""

import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
from dataclasses import replace

import numpy as np
import pytest

from fedlane.learning import datasets
from fedlane.learning.datasets import DatasetInfo, SourceFile, dataset_info, load_dataset, locate
from fedlane.validate import InputError


def test_the_embedded_subset_is_class_balanced_and_real(fashion_mnist):
    mini = load_dataset("fashion-mnist-mini")
    assert mini.train.images.shape == (8000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(mini.train.labels), 800)
    np.testing.assert_array_equal(np.bincount(mini.test.labels), 200)
    first = np.flatnonzero(fashion_mnist.train.labels == 3)[:5]
    np.testing.assert_array_equal(mini.train.images[mini.train.labels == 3][:5], fashion_mnist.train.images[first])


def test_fashion_mnist(fashion_mnist):
    assert fashion_mnist.train.images.shape == (60000, 28, 28, 1)
    assert fashion_mnist.test.images.shape == (10000, 28, 28, 1)
    assert fashion_mnist.train.labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert fashion_mnist.train.images.mean() == pytest.approx(72.94, abs=0.01)


@pytest.mark.long  # it is unpacked with one core, which takes 20 s
def test_cifar10(cifar10):
    assert cifar10.train.images.shape == (50000, 32, 32, 3)
    assert cifar10.train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert cifar10.train.images[0, 0, 0].tolist() == [59, 62, 63]  # red, green, blue of the frog's first pixel
    np.testing.assert_allclose(cifar10.train.images.mean((0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)


CONTENT = {name: os.urandom(3000) for name in ("one", "two")}


def tiny(home, **changes):
    files = tuple(SourceFile(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENT.items())
    info = DatasetInfo("tiny", "t", (1, 1, 1), 1, 1, 1, "x", ("tiny",), files, home)
    return replace(info, **changes)


class Server(http.server.BaseHTTPRequestHandler):
    """Server of `files` that can cut connections, ignore ranges or fail (`behaviour`) and records every request."""

    files: dict
    behaviour: dict
    requests: list

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        requested = self.headers.get("Range")
        type(self).requests.append((name, requested))
        if name not in self.files:
            self.send_error(404)
            return
        if self.behaviour.get("fail", 0) > 0:
            self.behaviour["fail"] -= 1
            self.send_error(503)
            return
        data = self.files[name]
        start = int(requested.split("=")[1].rstrip("-")) if requested and self.behaviour.get("ranges", True) else 0
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        rest = data[start:]
        if self.behaviour.get("cut", 0) > 0:
            self.behaviour["cut"] -= 1
            rest = rest[: len(rest) // 3]
        self.wfile.write(rest)
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    handler = type("Handler", (Server,), {"files": {}, "behaviour": {}, "requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as instance:
        threading.Thread(target=instance.serve_forever, daemon=True).start()
        handler.home = f"http://127.0.0.1:{instance.server_address[1]}/"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("FEDLANE_DATA", raising=False)
        monkeypatch.setattr("fedlane.learning.download.time.sleep", lambda seconds: None)
        yield handler
        instance.shutdown()


def gzipped(server):
    server.files.update({f"{name}.gz": gzip.compress(content) for name, content in CONTENT.items()})


def archived(server):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in CONTENT.items():
            member = tarfile.TarInfo(f"some-folder/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files["all.tar.gz"] = buffer.getvalue()


def check(folder):
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == CONTENT


def test_a_download_of_gz_files(server):
    gzipped(server)
    info = tiny(server.home)
    assert locate(info) is None
    check(datasets._download(info))
    assert locate(info) is not None


def test_a_download_of_an_archive(server):
    archived(server)
    check(datasets._download(tiny(server.home + "all.tar.gz")))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_resumed(server, ranges):
    archived(server)
    server.behaviour.update(cut=2, ranges=ranges)
    check(datasets._download(tiny(server.home + "all.tar.gz")))
    asked = [r for _, r in server.requests]
    assert asked[0] is None
    assert asked[1].startswith("bytes=")
    assert len(asked) == 3


def test_a_later_attempt_resumes_an_earlier_one(server):
    archived(server)
    server.behaviour.update(cut=99)
    info = tiny(server.home + "all.tar.gz")
    with pytest.raises(InputError, match="the next attempt resumes it"):
        datasets._download(info)
    server.behaviour.update(cut=0)
    before = len(server.requests)
    check(datasets._download(info))
    ((_, asked),) = server.requests[before:]
    assert int(asked.split("=")[1].rstrip("-")) > len(server.files["all.tar.gz"]) // 2


def test_after_a_wrong_checksum_the_download_starts_over(server):
    gzipped(server)
    server.files["two.gz"] = gzip.compress(b"wrong")
    info = tiny(server.home)
    with pytest.raises(InputError, match=r"download two\.gz: the checksum of two is wrong"):
        datasets._download(info)
    folder = datasets.cache_folder() / "tiny"
    assert [p.name for p in folder.iterdir()] == ["one"]
    assert locate(info) is None
    gzipped(server)
    check(datasets._download(info))


def test_garbage_is_not_unpacked(server):
    server.files.update({"one.gz": b"not gzip", "two.gz": b"nor this"})
    with pytest.raises(InputError, match=r"download one\.gz cannot be unpacked"):
        datasets._download(tiny(server.home))
    assert list((datasets.cache_folder() / "tiny").iterdir()) == []


def test_temporary_faults_are_retried_and_permanent_ones_are_not(server):
    gzipped(server)
    server.behaviour.update(fail=2)
    check(datasets._download(tiny(server.home)))
    server.files.clear()
    before = len(server.requests)
    with pytest.raises(InputError, match="404"):
        datasets._download(tiny(server.home, folders=("other",)))
    assert len(server.requests) == before + 1


def test_a_mirror_replaces_the_official_site(server, monkeypatch):
    gzipped(server)
    monkeypatch.setenv("FEDLANE_MIRROR", server.home)
    check(datasets._download(tiny("http://127.0.0.1:9/")))
    with pytest.raises(InputError, match="must begin with http"):
        datasets.fetch("file:///etc/passwd", datasets.cache_folder())


def test_folders_are_searched_in_order_and_damage_is_found(tmp_path, monkeypatch):
    info = tiny("")
    monkeypatch.setattr(datasets, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path / "mine"))
    for place in ("cache/fedlane/tiny", "system/tiny", "mine/tiny"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "one").write_bytes(CONTENT["one"])
        assert locate(info) != folder  # one of the two files is not enough
        (folder / "two.gz").write_bytes(gzip.compress(CONTENT["two"]))
        assert locate(info) == folder
    assert datasets._verified(folder, info.files[1]) == CONTENT["two"]
    (folder / "two.gz").write_bytes(gzip.compress(CONTENT["two"])[:-20])
    with pytest.raises(InputError, match=r"two\.gz is damaged"):
        datasets._verified(folder, info.files[1])
    (folder / "one").write_bytes(CONTENT["one"][:-1] + b"x")
    with pytest.raises(InputError, match="its checksum does not match the published one"):
        datasets._verified(folder, info.files[0])


def test_an_unknown_dataset():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        dataset_info("cifar")


def test_a_compressed_file_is_read_up_to_its_known_size(tmp_path, monkeypatch):
    """A few kilobytes that would be thirty megabytes of zeros."""
    import tracemalloc

    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    labels = dataset_info("fashion-mnist").files[1]
    with gzip.open(tmp_path / f"{labels.name}.gz", "wb", compresslevel=1) as compressed:
        compressed.write(bytes(30_000_000))
    info = replace(dataset_info("fashion-mnist"), files=(labels,))
    monkeypatch.setitem(datasets.DATASETS, "fashion-mnist", info)
    tracemalloc.start()
    with pytest.raises(InputError, match="checksum does not match"):
        load_dataset("fashion-mnist")
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_a_download_is_unpacked_up_to_its_known_size(tmp_path):
    from fedlane.learning.download import unpack

    part = tmp_path / "file.gz.part"
    with gzip.open(part, "wb") as compressed:
        compressed.write(bytes(50_000_000))
    largest = []
    original = hashlib.file_digest

    def watched(file, name):
        largest.append(os.fstat(file.fileno()).st_size)
        return original(file, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "file_digest", watched)
        with pytest.raises(InputError, match="checksum"):
            unpack(part, tmp_path, {"file": (1000, "0" * 64)})
    assert largest == [1001]
    assert list(tmp_path.iterdir()) == []
