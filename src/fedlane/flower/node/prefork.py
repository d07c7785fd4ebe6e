"""Pre-forked worker processes for a node's ClientApps: a server that has imported Flower once forks for each message.

Flower starts a new `flwr-clientapp` for every message, and a small app spends most of its time importing Flower: about
a second of CPU time. SuperExec looks that command up on its PATH, so a node can put another command of the same name
first: one that passes its arguments and its open files to the prefork server, which forks. Every message still has its
own process, and no code of a message runs in the server itself. If the server does not confirm that it has forked, the
original command runs instead. The two never run together, because a child that cannot confirm its start exits.
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
_FALLBACK = "Flower starts its apps itself"
_CHUNK_BYTES = 65536
_REQUEST_TIMEOUT_S = 5.0
_MAX_PATH_BYTES = 100
"""Longest path of a socket; Linux allows 108 bytes."""
_REQUEST_SCRIPT = """\
import json, socket, sys
path, *arguments = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(5.0)
    connection.connect(path)
    socket.send_fds(connection, [json.dumps(arguments).encode()], [0, 1, 3])  # 3: the app's stderr; ours is discarded
    connection.shutdown(socket.SHUT_WR)
    try:
        reply = connection.recv(1)
    except TimeoutError:
        connection.shutdown(socket.SHUT_RD)  # from now on no child can start, but one may have started just before
        reply = connection.recv(1)
sys.exit(reply != b"1")
"""


@contextlib.contextmanager
def prefork_server(look_s: float, preload: Sequence[str] = ()) -> Iterator[None]:
    """Run a prefork server for the ClientApps of the processes that this process starts.

    The server imports the modules of ``preload`` first. Its ClientApps check every ``look_s`` seconds whether their
    model has arrived. Only this user can connect to the server. If no server can run, a warning is logged and Flower
    starts its apps itself.
    """
    on_path, path = shutil.which(COMMAND), os.environ.get("PATH", os.defpath)
    command = Path(sys.executable).with_name(COMMAND)
    if sys.platform != "linux" or on_path is None or not command.exists() or not command.samefile(on_path):
        logger.warning("%s: pre-forking needs Linux, and %s in the same folder as Python", _FALLBACK, COMMAND)
        yield
        return
    try:
        folder, process = _start(command, look_s, preload)
    except OSError as error:
        logger.warning("%s: cannot start the prefork server: %s", _FALLBACK, error)
        yield
        return
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
        process.kill()  # its children continue
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: Path, look_s: float, preload: Sequence[str]) -> tuple[Path, "subprocess.Popen[bytes]"]:
    """Start a server; return its process, and the folder of its socket and of the command that connects to it."""
    folder = Path(tempfile.mkdtemp(prefix="fedlane-"))
    try:
        _write_command(folder, str(command))
        # The server exits at the end of its input, that is, when this process has exited. -P: it imports nothing from
        # the current folder.
        argv = [sys.executable, "-P", "-m", "fedlane.flower.node.prefork", str(folder), str(look_s), *preload]
        return folder, subprocess.Popen(argv, stdin=subprocess.PIPE)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_command(folder: Path, original: str) -> None:
    """Write the command that sends a request to the server, and runs the original command if that fails."""
    command, socket_path = folder / "bin" / COMMAND, _socket_path(folder)
    if len(os.fsencode(socket_path)) > _MAX_PATH_BYTES:
        raise OSError(f"the path {socket_path} is too long for a socket (see TMPDIR)")
    command.parent.mkdir()
    request = shlex.join([sys.executable, "-IS", "-c", _REQUEST_SCRIPT, str(socket_path)])
    command.write_text(f'#!/bin/sh\n{request} "$@" 3>&2 2>/dev/null && exit 0\nexec {shlex.quote(original)} "$@"\n')
    command.chmod(0o700)


def _socket_path(folder: Path) -> Path:
    return folder / "socket"


def main() -> None:
    """Run the server until the process that started it has exited. Arguments: FOLDER LOOK_S [MODULE ...]."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the node, and the server exits with the node
    folder, look_s, *preload = sys.argv[1:]
    arguments = None
    try:
        (entry,) = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
        app = entry.load()
        look_for_the_model_every(float(look_s))
        for name in preload:
            importlib.import_module(name)
        if not _can_fork():
            sys.exit(f"fedlane-supernode: {_FALLBACK}: a module of --preload keeps a thread running")
        gc.collect()
        gc.freeze()  # the collector must not write to the pages that all children share
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(_socket_path(Path(folder))))
            listener.listen(16)
            arguments = _serve_until_child(listener)
    except Exception as error:  # from a preloaded module, or the socket
        sys.exit(f"fedlane-supernode: {_FALLBACK}: {type(error).__name__}: {error}")
    finally:
        if arguments is None:  # the server itself exits, and the node may have exited without removing the folder
            shutil.rmtree(folder, ignore_errors=True)
    if arguments is not None:
        sys.argv = [COMMAND, *arguments]
        sys.exit(app())


def _can_fork() -> bool:
    """Return whether a fork loses no thread, apart from those that stop by themselves at a fork, such as OpenBLAS's."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1


def _serve_until_child(listener: socket.socket) -> list[str] | None:
    """Fork for every request. Return the request's arguments in a child, and None in the server at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        with contextlib.suppress(OSError, ValueError), listener.accept()[0] as connection:
            connection.settimeout(_REQUEST_TIMEOUT_S)
            arguments, files = _receive_request(connection)
            try:
                if os.fork() == 0:
                    _become_child(connection, files)
                    return arguments
            finally:
                for file in files:
                    os.close(file)


def _receive_request(connection: socket.socket) -> tuple[list[str], list[int]]:
    """Receive a request: arguments, and the three open files that come with its first bytes."""
    request, files, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, 3)
    try:
        while chunk := connection.recv(_CHUNK_BYTES):
            request += chunk
        if len(files) != 3:
            raise ValueError(f"a request must come with 3 open files, got {len(files)}")
        return [str(argument) for argument in json.loads(request)], files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def _become_child(connection: socket.socket, files: Sequence[int]) -> None:
    """Confirm the start, and reset open files, signals and random numbers to those of a new process."""
    try:
        connection.sendall(STARTED)  # fails if the caller has given up, and so runs the original command
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
