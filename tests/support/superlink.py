"""A real federation on this machine for tests: one SuperLink and its SuperNodes, with separate folder and ports.

    with Federation(tmp_path) as federation:
        federation.start_node(0)
        run = federation.run(APP, {"rounds": 3})
        run.wait(60)

Traffic is plaintext on the loopback interface, telemetry is off, and every process is stopped at the end.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from fedlane.flower.testbed.processes import lower_priority
from support.waiting import wait_for

BIN = Path(sys.executable).parent
APPS = Path(__file__).parent / "apps"
_PUSH = b"POST /v1/fleet/push-object"


def free_port():
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Federation:
    """SuperLink and SuperNodes as processes; a context manager."""

    def __init__(self, folder, *, simulation=False):
        """With ``simulation``, apps run in Flower's simulation engine instead of on SuperNodes."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = self.folder / "flwr-home"
        self.home.mkdir(exist_ok=True)
        self.port = free_port()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "lo"\n\n[superlink.lo]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.superlink = None
        self.simulation = simulation
        self.nodes, self.relays = {}, []
        self._killed = []

    def __enter__(self):
        try:
            self.start_superlink()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in [*self.nodes.values(), self.superlink]:
            if process is not None:
                stop(process)
        for process in self._killed:
            process.wait()

    def start_superlink(self):
        """Start SuperLink, or restart it on its database; return once it listens."""
        options = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--database", str(self.folder / "state.db"), "--disable-runtime-dependency-installation"]
        options += ["--simulation"] if self.simulation else []
        self.superlink = self._start("superlink", BIN / "flower-superlink", *options)
        wait_for(lambda: _listens(self.port), 30, lambda: self.log("superlink"))

    def start_node(self, number, *, through=None, stock=False, preload=(), **config):
        """Start a SuperNode with its number as `partition-id` in its node-config, and ``config`` with it.

        Args:
            number: The node's number.
            through: Port of a relay to SuperLink.
            stock: Whether to use Flower's command instead of FedLane's.
            preload: Modules that FedLane's command imports in advance.
            config: Further values of the node-config.
        """
        values = " ".join(f"{k}={json.dumps(v)}" for k, v in {"partition-id": number, **config}.items())
        options = ["--insecure", "--superlink", f"127.0.0.1:{through or self.port}", "--host", "127.0.0.1"]
        options += ["--port", str(free_port()), "--node-config", values]
        options += [word for module in preload for word in ("--preload", module)]
        self.nodes[number] = self._start(
            f"node{number}", BIN / ("flower-supernode" if stock else "fedlane-supernode"), *options
        )
        if stock:  # SuperLink is timed while these nodes start processes; on a busy machine others would starve
            lower_priority(self.nodes[number].pid)

    def kill_node(self, number):
        """Kill a SuperNode and everything it started."""
        self._kill(self.nodes.pop(number))

    def kill_superlink(self):
        """Kill SuperLink and everything it started, including the ServerApp."""
        self._kill(self.superlink)
        self.superlink = None

    def _kill(self, process):
        """Kill a process; it stays a zombie, or its processor time for all tests would be charged to this one."""
        os.killpg(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._killed.append(process)

    def run(self, app, config=None, engine=None):
        """Submit an app and return the run without waiting for it.

        Args:
            app: The app's folder, or its name under apps/.
            config: The run-config.
            engine: Settings of the simulation engine, such as {"num-supernodes": 100}.
        """
        folder = APPS / app if (APPS / str(app)).is_dir() else Path(app)
        words = " ".join(f"{k}={json.dumps(v)}" for k, v in (config or {}).items())
        options = ["--run-config", words] if words else []
        words = " ".join(f"{k}={json.dumps(v)}" for k, v in (engine or {}).items())
        options += ["--federation-config", words] if words else []
        submitted = self.flwr("run", str(folder), "lo", *options, "--format", "json")
        return SubmittedRun(self, str(submitted["run-id"]))

    def flwr(self, *arguments):
        """Run the flwr command and return its JSON output."""
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        text = done.stdout[done.stdout.find("{") :]
        assert text, f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return json.loads(text)

    def log(self, name):
        """Return the log of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name, *command):
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


class SharedFederation(Federation):
    """A federation that tests use one after the other. Each node has a relay, a ledger and a command as its switch."""

    NODES = 3

    def __enter__(self):
        super().__enter__()
        self.relays = [Relay(self.port) for _ in range(self.NODES)]
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        for relay in self.relays:
            relay.close()

    def ready(self):
        """Start the nodes that an earlier test has killed; all but the first import PyTorch in advance."""
        for number, relay in enumerate(self.relays):
            relay.pushed = lambda: None
            if number not in self.nodes:
                preload = ["fedlane.flower.node.preload"] if number else []
                switch = f"mkdir -p {self.folder}/switched/{number}-{{lane}}"
                values = {"fedlane-ledger": str(self.ledger(number)), "fedlane-switch": switch}
                self.start_node(number, through=relay.port, preload=preload, **values)
        return self

    def ledger(self, number):
        """Return the path of a node's ledger."""
        return self.folder / f"{number}.ledger"


class Relay:
    """A TCP relay to SuperLink that records the times (`time.monotonic`) of the objects that a node uploads.

    ``begun_s`` holds when the node began to upload each object, before SuperLink saw it; ``stored_s`` when SuperLink
    had confirmed it. ``pushed`` is called when an upload begins.
    """

    def __init__(self, port):
        self.target, self.pushed = port, lambda: None
        self.begun_s, self.stored_s = [], []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # SuperLink is away
                near.close()
                continue
            pushing = threading.Event()
            threading.Thread(target=self._pump, args=(near, far, pushing, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, pushing, False), daemon=True).start()

    def _pump(self, source, sink, pushing, up):
        tail = b""
        try:
            while data := source.recv(65536):
                if up:
                    if _PUSH in tail + data:
                        self.begun_s.append(time.monotonic())
                        pushing.set()
                        self.pushed()
                    tail = (tail + data)[-len(_PUSH) :]
                elif pushing.is_set():
                    self.stored_s.append(time.monotonic())
                    pushing.clear()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self):
        """Stop accepting connections."""
        self._server.close()


class SubmittedRun:
    """A run that was submitted to SuperLink."""

    def __init__(self, federation, run_id):
        self.federation = federation
        self.run_id = run_id

    def wait(self, seconds):
        """Wait for the run's end; its results tell whether it succeeded (asking Flower takes a second of CPU time)."""
        ended = re.compile(f"Finished task [0-9]+ of run {self.run_id}")
        wait_for(lambda: ended.search(self.log()), seconds, self.log)

    def log(self):
        """Return the output of SuperLink and the ServerApp."""
        return self.federation.log("superlink")


def stop(process):
    """Terminate a process and its children, and kill them if they do not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
