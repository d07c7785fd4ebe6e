"""Where a node's ClientApps are born: a process that has imported Flower once, and is copied for every message.

Flower starts a new `flwr-clientapp` for every message, and most of what a small one does is to import Flower: about a
second of a processor. SuperExec finds that command on its PATH, so a node can put another of the same name before it:
one that hands its arguments and its open files over to the nursery, which forks. Every message still has a process of
its own, and nothing that a message brings runs in the nursery itself. Where the hand-over does not succeed, the command
that was found is run after all; never both, since a child that cannot say so is not born.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import json
import logging
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedlane.flower._adapted import look_for_the_model_every

logger = logging.getLogger("fedlane.flower")

COMMAND = "flwr-clientapp"
STARTED = b"1"
_PIECE = 65536
_REQUEST_TIMEOUT_S = 5.0
_LONGEST = 100
"""Bytes of a socket's path; Linux has 108."""
_HAND_OVER = """\
import json, socket, sys
door, *arguments = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as line:
    line.settimeout(5.0)
    line.connect(door)
    socket.send_fds(line, [json.dumps(arguments).encode()], [0, 1, 3])  # 3: our errors' own place is elsewhere
    line.shutdown(socket.SHUT_WR)
    try:
        word = line.recv(1)
    except TimeoutError:
        line.shutdown(socket.SHUT_RD)  # from now on nobody can be born; somebody may have been a moment ago
        word = line.recv(1)
sys.exit(word != b"1")
"""


@contextlib.contextmanager
def prefork_server(look_s: float, preload: Sequence[str] = ()) -> Iterator[None]:
    """While this lasts, ClientApps of what this process starts are born in a nursery, with these modules imported.

    They look every ``look_s`` whether their model is there. Only this user can reach the nursery. Where there can be
    none, which is logged, Flower starts its apps its own way.
    """
    found, path = shutil.which(COMMAND), os.environ.get("PATH", os.defpath)
    real = Path(sys.executable).with_name(COMMAND)
    if sys.platform != "linux" or found is None or not real.exists() or not real.samefile(found):
        logger.warning("apps start as Flower has it: copying them needs Linux, and %s beside this Python", COMMAND)
        yield
        return
    try:
        folder, process = _start(real, look_s, preload)
    except OSError as error:
        logger.warning("apps start as Flower has it: no nursery can be made: %s", error)
        yield
        return
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
        process.kill()  # whoever was born lives on
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _start(real: Path, look_s: float, preload: Sequence[str]) -> tuple[Path, "subprocess.Popen[bytes]"]:
    """A nursery, and the folder with its door and our command."""
    folder = Path(tempfile.mkdtemp(prefix="fedlane-"))
    try:
        _write_command(folder, str(real))
        # The end of its input is the sign that we are gone. -P: what lies in our folder is not its to import.
        argv = [sys.executable, "-P", "-m", "fedlane.flower.node.prefork", str(folder), str(look_s), *preload]
        return folder, subprocess.Popen(argv, stdin=subprocess.PIPE)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_command(folder: Path, real: str) -> None:
    """Our command: hand over, or else run the real one."""
    ours, door = folder / "bin" / COMMAND, _socket_path(folder)
    if len(os.fsencode(door)) > _LONGEST:
        raise OSError(f"the name of {door} is too long for a socket (TMPDIR)")
    ours.parent.mkdir()
    hand_over = shlex.join([sys.executable, "-IS", "-c", _HAND_OVER, str(door)])
    ours.write_text(f'#!/bin/sh\n{hand_over} "$@" 3>&2 2>/dev/null && exit 0\nexec {shlex.quote(real)} "$@"\n')
    ours.chmod(0o700)


def _socket_path(folder: Path) -> Path:
    return folder / "door"


def main() -> None:
    """Wait for hand-overs until whoever started this is gone: FOLDER LOOK_S [MODULE ...]."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the node, whose end is the nursery's
    folder, look_s, *preload = sys.argv[1:]
    born = None
    try:
        (entry,) = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
        app = entry.load()
        look_for_the_model_every(float(look_s))
        for name in preload:
            importlib.import_module(name)
        if not _can_be_copied():
            sys.exit("fedlane-supernode: apps start as Flower has it: a module of --preload keeps a thread running")
        gc.collect()
        gc.freeze()  # what all children share is not written to
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(_socket_path(Path(folder))))
            door.listen(16)
            born = _serve_until_child(door)
    except Exception as error:  # a module of somebody else's, or the door
        sys.exit(f"fedlane-supernode: apps start as Flower has it: {type(error).__name__}: {error}")
    finally:
        if born is None:  # the nursery's own end: nobody else may be left to tidy up
            shutil.rmtree(folder, ignore_errors=True)
    if born is not None:
        sys.argv = [COMMAND, *born]
        sys.exit(app())


def _can_be_copied() -> bool:
    """Whether a fork loses nothing: all threads are ours, but those that end by themselves at a fork, as OpenBLAS's."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1


def _serve_until_child(door: socket.socket) -> list[str] | None:
    """Fork for every hand-over. In a child, returns its arguments; in the nursery None, at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a child
    while True:
        ready, _, _ = select.select([door, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        with contextlib.suppress(OSError, ValueError), door.accept()[0] as line:
            line.settimeout(_REQUEST_TIMEOUT_S)
            arguments, files = _receive_request(line)
            try:
                if os.fork() == 0:
                    _become_child(line, files)
                    return arguments
            finally:
                for file in files:
                    os.close(file)


def _receive_request(line: socket.socket) -> tuple[list[str], list[int]]:
    """A hand-over: arguments, and the three open files that came with the first bytes."""
    said, files, _, _ = socket.recv_fds(line, _PIECE, 3)
    try:
        while piece := line.recv(_PIECE):
            said += piece
        if len(files) != 3:
            raise ValueError("not all files came")
        return [str(word) for word in json.loads(said)], files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def _become_child(line: socket.socket, files: Sequence[int]) -> None:
    """Say so, and be as a process that was just started: its own open files, signals and random numbers."""
    try:
        line.sendall(STARTED)  # fails where whoever handed over has given up, and runs the real command
        for number, file in enumerate(files):
            os.dup2(file, number)
        for signal_number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if "numpy" in sys.modules:
            importlib.import_module("numpy.random").seed()
    except BaseException:
        os._exit(1)


if __name__ == "__main__":
    main()
