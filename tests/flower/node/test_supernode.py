"""fedlane-supernode: ClientApps are forked by a prefork server, each in the state of a new process."""

import contextlib
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
from fedlane.flower.node import supernode
from fedlane.flower.node.prefork import COMMAND, prefork_server

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
PROBE = """
import atexit, json, os, signal, sys
import numpy.random

def report():
    print("PROBE's errors", file=sys.stderr, flush=True)
    print("PROBE", json.dumps({
        "pid": os.getpid(), "parent": os.getppid(), "draw": numpy.random.random(), "argv": sys.argv,
        "signals": [signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGCHLD)],
        "interrupt": signal.getsignal(signal.SIGINT) == signal.default_int_handler, "stdin": sys.stdin.read(),
        "files": [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")],
        "cwd_first": "" in sys.path or os.getcwd() in sys.path[:1],
    }), flush=True)

os.register_at_fork(after_in_child=lambda: atexit.register(report))
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Return a folder from which a prefork server can import modules."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def call(*arguments, marker="", stdin=""):
    """Run the command on the PATH; return its status, and its output once that contains the marker."""
    folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    (folder / "stdin").write_text(stdin)
    with (folder / "stdin").open() as given, (folder / "output").open("w+") as output:
        done = subprocess.run([COMMAND, *arguments], stdin=given, stdout=output, stderr=subprocess.STDOUT, timeout=120)
        end = time.monotonic() + 120
        while True:
            output.seek(0)
            text = output.read()
            if marker in text or time.monotonic() > end:
                return done.returncode, text
            time.sleep(0.02)


def wait_for_server():
    """Wait until the prefork server listens; return its folder and its process id."""
    end = time.monotonic() + 120
    folder = Path(os.environ["PATH"].split(os.pathsep)[0]).parent
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(str(folder / "socket")):
            assert time.monotonic() < end
            time.sleep(0.05)
    (server,) = processes(str(folder))
    return folder, server


def processes(word):
    """Return the ids of the processes that have a word on their command line."""
    ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                ids.append(int(path.parent.name))
        except OSError:
            pass
    return ids


def test_each_app_has_its_own_process(modules):
    """With its own files, arguments, signal handlers and random numbers."""
    (modules / "probe.py").write_text(PROBE)
    before = os.environ["PATH"]
    with prefork_server(0.25, ["probe"]):
        folder, server = wait_for_server()
        outputs = [call("--help", marker="PROBE {", stdin=f"input {number}")[1] for number in range(2)]
    assert os.environ["PATH"] == before
    assert not folder.exists()
    plain = subprocess.run([BIN / COMMAND, "--help"], capture_output=True, text=True).stdout
    probes = []
    for text in outputs:
        usage, _, probe = text.partition("PROBE's errors\n")
        assert usage == plain
        probes.append(json.loads(probe.removeprefix("PROBE")))
    assert [probe["parent"] for probe in probes] == [server, server]
    assert probes[0]["pid"] != probes[1]["pid"]
    assert probes[0]["draw"] != probes[1]["draw"]
    assert [probe["argv"] for probe in probes] == [[COMMAND, "--help"]] * 2
    assert [probe["signals"] for probe in probes] == [[True, True]] * 2
    assert [probe["interrupt"] for probe in probes] == [True, True]
    assert [probe["stdin"] for probe in probes] == ["input 0", "input 1"]
    assert [probe["files"] for probe in probes] == [[0, 1, 2]] * 2
    assert not probes[0]["cwd_first"]


@pytest.mark.parametrize("cause", ["dead", "stopped", "threads", "broken"])
def test_without_a_prefork_server_flowers_command_runs(modules, capfd, cause):
    """The server has died or hangs, or a module prevents it: the command runs once, and no child starts later."""
    (modules / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (modules / "broken.py").write_text("import no_such_module\n")
    (modules / "probe.py").write_text(PROBE)
    with prefork_server(0.25, ["probe", *([cause] if cause in ("threads", "broken") else [])]):
        folder = Path(os.environ["PATH"].split(os.pathsep)[0]).parent
        if cause in ("dead", "stopped"):
            _, server = wait_for_server()
            os.kill(server, signal.SIGKILL if cause == "dead" else signal.SIGSTOP)
        else:
            end = time.monotonic() + 120
            while processes(str(folder)) or "Flower starts its apps itself" not in (errors := capfd.readouterr().err):
                assert time.monotonic() < end
                time.sleep(0.1)
            assert {"threads": "keeps a thread", "broken": "No module named 'no_such_module'"}[cause] in errors
            assert "Traceback" not in errors
            return  # the folder has been removed, and with it the command
        status, text = call("--help", marker="usage")
        assert status == 0
        assert "PROBE" not in text
        if cause == "stopped":
            os.kill(server, signal.SIGCONT)
            time.sleep(1.0)
            output = (modules / "output").read_text()
            assert (output.count("usage"), output.count("PROBE")) == (1, 0)
            assert "PROBE" in call("--help", marker="PROBE")[1]  # the server continues
        else:
            assert call("--no-such-option", marker="usage")[0] == 2


def test_a_prefork_server_exits_with_its_node(modules):
    """A node that is killed leaves neither the server nor its folder behind."""
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
        assert time.monotonic() < end, "the server is still running"
        time.sleep(0.05)


def test_where_pre_forking_is_impossible_the_path_is_unchanged(modules, monkeypatch, caplog):
    """With a folder whose path is too long for a socket, or another Flower on the PATH, a warning is logged."""
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
    assert "in the same folder as Python" in caplog.text


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
def test_shorter_waits_fit_the_installed_flwr(monkeypatch, caplog, module, function, change):
    """Flower's functions get shorter waits; another version of Flower is not changed, and a warning is logged."""
    names = vars(importlib.import_module(module))
    original = names[function]
    monkeypatch.setitem(names, function, original)  # both are restored afterwards
    if "time" in names:
        monkeypatch.setitem(names, "time", time)
    monkeypatch.setattr(flwr, "__version__", "1.99.0")
    with caplog.at_level(logging.WARNING, "fedlane.flower"):
        assert not change(0.2)
    assert "1.99.0" in caplog.text
    assert names[function] is original
    monkeypatch.undo()
    monkeypatch.setitem(names, function, original)
    if "time" in names:
        monkeypatch.setitem(names, "time", time)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert change(0.2)
    assert names[function].func is original
    waits = names[function].keywords
    assert (waits["initial_backoff"], waits["backoff_cap"]) == (0.02, 0.2)
    if "time" in names:
        names["time"].sleep(3)
        names["time"].sleep(0.5)
        assert slept == [0.2, 0.05]
        assert names["time"].time is time.time
        monkeypatch.setitem(names, "time", time)
        monkeypatch.setitem(names, function, original)
        assert change(2.0)
        names["time"].sleep(3)
        names["time"].sleep(0.5)
        assert slept[2:] == [2.0, 0.05]  # the SuperLink pays for each poll, so a longer interval is kept


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--look-every", "90"], 2, "must be from 0.01 to 60 s, got 90"),
        (["--preload", "a b"], 2, "not a module name: 'a b'"),
        (["--look-every", "soon"], 2, "must be from 0.01 to 60 s, got soon"),
        (["--version"], 0, "FedLane version:"),
        (["--no-such-option"], 2, "unrecognized arguments: --no-such-option"),
        (["--help"], 0, "--preload MODULE"),
        (["--help"], 0, "--auth-supernode-private-key"),
        (["--preload", "no_such_module", "--help"], 2, "no module named 'no_such_module'"),
    ],
)
def test_the_command_accepts_its_own_options_and_flowers(monkeypatch, capsys, options, status, text):
    monkeypatch.setattr(sys, "argv", ["fedlane-supernode", *options])
    monkeypatch.setattr(_adapted, "look_every", lambda seconds: True)  # it would change Flower in this process
    monkeypatch.setattr("fedlane.flower.node.prefork.prefork_server", lambda *_: contextlib.nullcontext())
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"):
        monkeypatch.setenv(name, "1" if "DISABLE" in name else "0")
    with pytest.raises(SystemExit) as end:
        supernode.main()
    printed = capsys.readouterr()
    assert end.value.code == status
    assert text in printed.out + printed.err
