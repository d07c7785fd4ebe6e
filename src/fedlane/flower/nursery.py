"""Where a node's ClientApps are born: a process that has imported Flower once, and is copied for every message.

Flower starts a new `flwr-clientapp` for every message, and most of what a small one does is to import Flower: about a
second of a processor. SuperExec finds that command on its PATH, so a node can put another of the same name before it:
one that hands its arguments and its open files over to the nursery, which forks. Every message still has a process of
its own, and no app's code ever runs in the nursery itself. If the nursery cannot be reached, the command that was found
is run after all.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedlane.flower._adapted import look_for_the_model_every

COMMAND = "flwr-clientapp"
_LONGEST = 65536
"""Bytes of a hand-over: a token, an address, a few paths."""
_HAND_OVER = """\
import json, os, socket, sys

nursery, command, *arguments = sys.argv[1:]
try:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(10.0)
        line.connect(nursery)
        socket.send_fds(line, [json.dumps(arguments).encode()], [0, 1, 2])
        born = line.recv(1) == b"1"
except OSError:
    born = False
if not born:
    os.execv(command, [command, *arguments])
"""


@contextlib.contextmanager
def open_nursery(look_s: float, preload: Sequence[str] = ()) -> Iterator[None]:
    """While this lasts, ClientApps of what this process starts are born in a nursery, with these modules imported.

    They look every ``look_s`` whether their model is there.
    """
    real = shutil.which(COMMAND)
    if real is None or not hasattr(os, "fork") or not hasattr(socket, "SOCK_SEQPACKET"):
        yield  # Flower starts them its own way
        return
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="fedlane-", ignore_cleanup_errors=True) as folder:
        address, script, ours = Path(folder, "nursery"), Path(folder, "hand_over.py"), Path(folder, "bin", COMMAND)
        ours.parent.mkdir()
        script.write_text(_HAND_OVER)
        words = [sys.executable, "-IS", str(script), str(address), real]
        ours.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        ours.chmod(0o700)
        argv = [sys.executable, "-m", "fedlane.flower.nursery", str(address), str(look_s), *preload]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE)  # its end of input is the sign that we are gone
        os.environ["PATH"] = f"{ours.parent}{os.pathsep}{path}"
        try:
            yield
        finally:
            os.environ["PATH"] = path
            process.communicate()


def main() -> None:
    """Wait for hand-overs until whoever started this is gone: ADDRESS LOOK_S [MODULE ...]."""
    address, look_s, *preload = sys.argv[1:]
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
    app = entry.load()
    look_for_the_model_every(float(look_s))
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all children share is not written to
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
        door.listen(16)
        arguments = _until_born(door)
    if arguments is not None:  # in the child
        sys.argv = [COMMAND, *arguments]
        sys.exit(app())


def _until_born(door: socket.socket) -> list[str] | None:
    """Fork for every hand-over. In a child, returns its arguments; in the nursery None, at the end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the node, whose end is the nursery's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child
    while True:
        ready, _, _ = select.select([door, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        with door.accept()[0] as line, contextlib.suppress(OSError, ValueError):
            line.settimeout(1.0)
            said, files, _, _ = socket.recv_fds(line, _LONGEST, 3)
            arguments = json.loads(said)
            if threading.active_count() > 1:  # a module keeps a thread, which a fork would lose
                line.send(b"0")
            elif os.fork() == 0:
                _settle(files)
                return [str(word) for word in arguments]
            else:
                line.send(b"1")
            for file in files:
                os.close(file)


def _settle(files: Sequence[int]) -> None:
    """Be as a process that was just started: its own open files, signals and random numbers."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed()


if __name__ == "__main__":
    main()
