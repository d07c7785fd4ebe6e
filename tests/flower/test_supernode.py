"""Nodes without Flower's waits: ClientApps are born in a nursery, each as a process that was just started."""

import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import flwr
import pytest

from fedlane.flower import _adapted
from fedlane.flower.node.prefork import COMMAND, prefork_server

BIN = Path(sys.executable).parent
PROBE = """
import atexit, json, os, signal, sys
import numpy.random

def tell():
    print("PROBE's errors", file=sys.stderr, flush=True)
    print("PROBE", json.dumps({
        "pid": os.getpid(), "parent": os.getppid(), "draw": numpy.random.random(), "argv": sys.argv,
        "signals": [signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGCHLD)],
        "interrupt": signal.getsignal(signal.SIGINT) == signal.default_int_handler, "word": sys.stdin.read(),
        "files": [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")],
        "cwd_first": "" in sys.path or os.getcwd() in sys.path[:1],
    }), flush=True)

os.register_at_fork(after_in_child=lambda: atexit.register(tell))
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Where to put modules that a nursery can import."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def call(*arguments, marker="", word=""):
    """What the command on the PATH says, in the end: it may have handed over. A word is put to its input."""
    folder = Path(os.environ["PYTHONPATH"])
    (folder / "word").write_text(word)
    with (folder / "word").open() as asked, (folder / "said").open("w+") as said:
        done = subprocess.run([COMMAND, *arguments], stdin=asked, stdout=said, stderr=subprocess.STDOUT, timeout=120)
        end = time.monotonic() + 120
        while True:
            said.seek(0)
            text = said.read()
            if marker in text or time.monotonic() > end:
                return done.returncode, text
            time.sleep(0.02)


def wait_for_the_nursery():
    """Until it answers: before that, Flower's own command is run, which is right, too."""
    end = time.monotonic() + 120
    folder = Path(os.environ["PATH"].split(os.pathsep)[0]).parent
    with socket.socket(socket.AF_UNIX) as line:
        while line.connect_ex(str(folder / "door")):
            assert time.monotonic() < end
            time.sleep(0.05)
    (nursery,) = processes(str(folder))
    return folder, nursery


def processes(word):
    """Ids of the processes with a word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


@pytest.mark.slow
def test_each_app_is_a_new_process(modules):
    """Its own files, arguments and signals, and random numbers that no other has."""
    (modules / "probe.py").write_text(PROBE)
    before = os.environ["PATH"]
    with prefork_server(0.25, ["probe"]):
        folder, nursery = wait_for_the_nursery()
        said = [call("--help", marker="PROBE {", word=f"word {number}")[1] for number in range(2)]
    assert os.environ["PATH"] == before
    assert not folder.exists()
    plain = subprocess.run([BIN / COMMAND, "--help"], capture_output=True, text=True).stdout
    probes = []
    for text in said:
        usage, _, told = text.partition("PROBE's errors\n")
        assert usage == plain
        probes.append(json.loads(told.removeprefix("PROBE")))
    assert [probe["parent"] for probe in probes] == [nursery, nursery]
    assert probes[0]["pid"] != probes[1]["pid"]
    assert probes[0]["draw"] != probes[1]["draw"]
    assert [probe["argv"] for probe in probes] == [[COMMAND, "--help"]] * 2
    assert [probe["signals"] for probe in probes] == [[True, True]] * 2
    assert [probe["interrupt"] for probe in probes] == [True, True]
    assert [probe["word"] for probe in probes] == ["word 0", "word 1"]
    assert [probe["files"] for probe in probes] == [[0, 1, 2]] * 2
    assert not probes[0]["cwd_first"]


@pytest.mark.slow
@pytest.mark.parametrize("why", ["dead", "stopped", "threads", "broken"])
def test_without_a_nursery_flowers_own_command_is_run(modules, capfd, why):
    """A nursery that has died, that is stuck, or that modules make impossible: once, and nothing is born later."""
    (modules / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (modules / "broken.py").write_text("import no_such_module\n")
    (modules / "probe.py").write_text(PROBE)
    with prefork_server(0.25, ["probe", *([why] if why in ("threads", "broken") else [])]):
        folder = Path(os.environ["PATH"].split(os.pathsep)[0]).parent
        if why in ("dead", "stopped"):
            _, nursery = wait_for_the_nursery()
            os.kill(nursery, signal.SIGKILL if why == "dead" else signal.SIGSTOP)
        else:
            end = time.monotonic() + 120
            while processes(str(folder)) or "apps start as Flower has it" not in (said := capfd.readouterr().err):
                assert time.monotonic() < end
                time.sleep(0.1)
            assert {"threads": "keeps a thread", "broken": "No module named 'no_such_module'"}[why] in said
            assert "Traceback" not in said
            return  # the folder is gone, and our command with it
        status, text = call("--help", marker="usage")
        assert status == 0
        assert "PROBE" not in text
        if why == "stopped":
            os.kill(nursery, signal.SIGCONT)
            time.sleep(1.0)
            said = (modules / "said").read_text()
            assert (said.count("usage"), said.count("PROBE")) == (1, 0)
            assert "PROBE" in call("--help", marker="PROBE")[1]  # and it goes on
        else:
            assert call("--no-such-option", marker="usage")[0] == 2


@pytest.mark.slow
def test_a_nursery_ends_with_its_node(modules):
    """Killed without a word, the node leaves neither nursery nor folder behind."""
    code = (
        "import os, time\nfrom fedlane.flower.node.prefork import prefork_server\n"
        "with prefork_server(0.25):\n    print(os.environ['PATH'].split(':')[0], flush=True)\n    time.sleep(60)"
    )
    node = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = Path(node.stdout.readline().strip()).parent
    assert folder.is_dir()
    node.kill()
    node.wait()
    node.stdout.close()
    end = time.monotonic() + 120
    while processes(str(folder)) or folder.exists():
        assert time.monotonic() < end, "the nursery lives on"
        time.sleep(0.05)


def test_where_no_nursery_can_be_flower_does_it(modules, monkeypatch, caplog):
    """A folder whose name is too long for a socket, or another Flower on the PATH: a warning, and nothing changes."""
    deep = modules / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with prefork_server(0.25):
        assert os.environ["PATH"].startswith(str(BIN))
    assert "too long for a socket" in caplog.text
    assert not list(deep.iterdir())
    (modules / COMMAND).write_text("#!/bin/sh\n")
    (modules / COMMAND).chmod(0o700)
    monkeypatch.setenv("PATH", f"{modules}{os.pathsep}{os.environ['PATH']}")
    with prefork_server(0.25):
        assert os.environ["PATH"].startswith(str(modules))
    assert "beside this Python" in caplog.text


@pytest.mark.parametrize(
    ("module", "function", "change"),
    [
        ("flwr.supernode.start_client_internal", "pull_objects", _adapted.look_every),
        (
            "flwr.supernode.runtime.run_clientapp",
            "pull_and_inflate_object_from_tree",
            _adapted.look_for_the_model_every,
        ),
    ],
)
def test_the_adapted_waits_fit_the_installed_flwr(monkeypatch, caplog, module, function, change):
    """Flower's own functions with other waits; any other version is left alone, with a warning."""
    names = vars(importlib.import_module(module))
    theirs = names[function]
    monkeypatch.setitem(names, function, theirs)  # both are put back afterwards
    if "time" in names:
        monkeypatch.setitem(names, "time", time)
    monkeypatch.setattr(flwr, "__version__", "1.99.0")
    with caplog.at_level(logging.WARNING, "fedlane.flower"):
        assert not change(0.2)
    assert "1.99.0" in caplog.text
    assert names[function] is theirs
    monkeypatch.undo()
    monkeypatch.setitem(names, function, theirs)
    if "time" in names:
        monkeypatch.setitem(names, "time", time)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert change(0.2)
    assert names[function].func is theirs
    waits = names[function].keywords
    assert (waits["initial_backoff"], waits["backoff_cap"]) == (0.02, 0.2)
    if "time" in names:
        names["time"].sleep(3)
        names["time"].sleep(0.5)
        assert slept == [0.2, 0.05]
        assert names["time"].time is time.time
        monkeypatch.setitem(names, "time", time)
        monkeypatch.setitem(names, function, theirs)
        assert change(2.0)
        names["time"].sleep(3)
        names["time"].sleep(0.5)
        assert slept[2:] == [2.0, 0.05]  # the price of a look is SuperLink's: who asks for few gets few


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--look-every", "90"], 2, "must be from 0.01 to 60 s, got 90"),
        (["--preload", "a b"], 2, "not a module's name: 'a b'"),
        (["--look-every", "soon"], 2, "must be from 0.01 to 60 s, got soon"),
        (["--version"], 0, "FedLane version:"),
        (["--no-such-option"], 2, "unrecognized arguments: --no-such-option"),
        (["--help"], 0, "--preload MODULE"),
        (["--help"], 0, "--auth-supernode-private-key"),
        (["--preload", "no_such_module", "--help"], 2, "no module named 'no_such_module'"),
    ],
)
def test_the_command_takes_its_own_options_and_flowers(options, status, words):
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run([BIN / "fedlane-supernode", *options], capture_output=True, text=True, env=environment)
    assert done.returncode == status
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
