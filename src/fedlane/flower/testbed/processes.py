"""Start, wait for and stop Flower's processes: SuperLink, SuperNodes, the proxy, and runs of an app.

They write all their files into one folder. Telemetry and update checks are off. A child process dies with its parent,
even if the parent is killed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedlane.flower.testbed.certificates import NodeFiles, ServerFiles, make_node_files, make_server_files
from fedlane.flower.testbed.proxy import nginx_config
from fedlane.validate import InputError

NO_TELEMETRY = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Both are needed: with either one alone, Flower still contacts its servers."""
CONNECTION = "federation"
"""Name of the SuperLink in Flower's configuration file."""
_STOP_S = 5.0
_NODE_NICE = 10
"""`nice` value of the node processes."""
_POLL_S = 0.05


class ProcessError(InputError):
    """One of Flower's processes failed."""


@dataclass
class Child:
    """A child process and its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def log_text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``ready()``; raise `ProcessError` with the end of the log if the process exits or time runs out.

        ``what`` names the awaited event in the error.
        """
        end = time.monotonic() + timeout_s
        while not ready():
            if self.process.poll() is not None:
                raise ProcessError(
                    f"{self.name} exited with {self.process.returncode} before {what}: {self._log_tail()}"
                )
            if time.monotonic() > end:
                raise ProcessError(f"{self.name}: no {what} within {timeout_s:g} s: {self._log_tail()}")
            time.sleep(_POLL_S)

    def listens(self, port: int) -> bool:
        """Return whether any process in the child's namespace listens on a TCP port."""
        suffix = f":{port:04X}"
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                    local, state = line.split()[1], line.split()[3]
                    if state == "0A" and local.endswith(suffix):
                        return True
        return False

    def admitted(self) -> bool:
        """Return whether the SuperLink has given the node its id."""
        return "SuperNode ID:" in self.log_text()

    def terminate(self) -> None:
        """Send SIGTERM to the process and its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Terminate the process and its group; kill them if they have not exited in time."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):  # other processes of the group may outlive its leader
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _log_tail(self) -> str:
        lines = [" ".join(line.split()) for line in self.log_text().splitlines() if line.strip()]
        return " | ".join(lines[-4:])[-600:] or "its log is empty"


def lower_priority(process: int) -> None:
    """Lower the priority of a session leader and of the processes that it starts.

    Nodes stand for other machines, so their start-up must not slow down the base station. Linux divides CPU time
    between sessions first and by `nice` value only within them, so both are set; if neither can be, nothing changes.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, _NODE_NICE)
    for _ in range(5):
        try:
            Path(f"/proc/{process}/autogroup").write_text(str(_NODE_NICE))
        except BlockingIOError:  # only root may write more often than every 0.1 s
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


class FlowerCluster:
    """A SuperLink with TLS and node authentication, its SuperNodes, and the runs that an operator submits.

    Leaving the context stops every process. The SuperLink, the proxy and the operator run in ``namespace``; each node
    can run in another one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int,
        address: str = "127.0.0.1",
        namespace: str | None = None,
        node_port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create the server's certificate and Flower's configuration.

        The SuperLink listens on ``address``:``port``. With a ``node_port``, nodes connect to a proxy on that port
        instead, and the SuperLink listens on the loopback interface.
        """
        self.folder = folder
        self.namespace = namespace
        self.superlink_address = f"{'127.0.0.1' if node_port else address}:{port}"
        self.node_address = f"{address}:{node_port or port}"
        self.files: ServerFiles = make_server_files(folder / "keys", (address, "127.0.0.1", "localhost"))
        self.children: list[Child] = []
        self._port, self._node_port = port, node_port
        self._environment = {**os.environ, **NO_TELEMETRY, **(environment or {}), "FLWR_HOME": str(folder / "flwr")}
        # Flower looks its other commands up on the PATH.
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._configure(self.superlink_address, self.files.authority, folder / "flwr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes: first terminate them, the nodes before the SuperLink, so that they can sign off."""
        for child in reversed(self.children):
            child.terminate()
        while self.children:
            self.children.pop().stop()

    def start_superlink(self) -> Child:
        """Start the SuperLink, and the proxy if there is a node port; return once they listen."""
        address, port = self.superlink_address.rsplit(":", 1)
        files = self.files
        link = self.start(
            "superlink",
            [
                *("flower-superlink", "--host", address, "--port", port, "--enable-supernode-auth"),
                *("--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)),
                *("--ssl-keyfile", str(files.key), "--database", str(self.folder / "superlink.db")),
                "--disable-runtime-dependency-installation",
            ],
            self.namespace,
        )
        link.wait_for(lambda: link.listens(int(port)), 60.0, f"open port {port}")
        if self._node_port is not None:
            self._start_proxy(self._node_port)
        return link

    def _start_proxy(self, port: int) -> None:
        if shutil.which("nginx") is None:
            raise InputError("the proxy needs nginx, which is not installed")
        folder = self.folder / "proxy"
        folder.mkdir()
        (folder / "nginx.conf").write_text(
            nginx_config(
                listen=self.node_address,
                superlink=self.superlink_address,
                files=self.files,
                folder=folder,
                daemon=False,
            )
        )
        argv = ["nginx", "-e", str(folder / "nginx-error.log"), "-c", str(folder / "nginx.conf")]
        proxy = self.start("proxy", argv, self.namespace)
        proxy.wait_for(lambda: proxy.listens(port), 10.0, f"open port {port}")

    def new_node(self, name: str) -> NodeFiles:
        """Create a key for a node, without registering it."""
        return make_node_files(self.folder / "keys", name)

    def register(self, *nodes: NodeFiles) -> None:
        """Register nodes' public keys with the SuperLink."""
        for node in nodes:
            self.operate("supernode", "register", str(node.public), CONNECTION)

    def start_supernode(
        self,
        name: str,
        key: NodeFiles | None,
        *,
        port: int,
        namespace: str | None = None,
        config: Mapping[str, str | int] | None = None,
        options: Sequence[str] | None = None,
        preload: Sequence[str] = (),
        stock: bool = False,
    ) -> Child:
        """Start a node at a lower priority than the base station.

        ``options`` replace the option for the authority's certificate. With ``stock`` the command is Flower's own,
        otherwise `fedlane-supernode`, which imports the modules of ``preload`` once for all messages.
        """
        fedlane = ["fedlane-supernode", *(word for module in preload for word in ("--preload", module))]
        settings = " ".join(f"{k}={json.dumps(v)}" for k, v in (config or {}).items())
        certificates = ["--root-certificates", str(self.files.authority)]
        node = self.start(
            name,
            [
                *(["flower-supernode"] if stock else fedlane),
                *("--superlink", self.node_address, "--host", "127.0.0.1", "--port", str(port)),
                *(certificates if options is None else options),
                *([] if key is None else ["--auth-supernode-private-key", str(key.private)]),
                *(["--node-config", settings] if settings else []),
            ],
            namespace,
        )
        lower_priority(node.process.pid)
        return node

    def wait_for_nodes(self, nodes: Sequence[Child], timeout_s: float = 90.0) -> None:
        """Wait until every node has been admitted."""
        end = time.monotonic() + timeout_s
        for node in nodes:
            node.wait_for(node.admitted, max(1.0, end - time.monotonic()), "admission")

    def operate(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run a `flwr` command as the operator, in the SuperLink's namespace; return its output."""
        argv = [*self._in_namespace(self.namespace), "flwr", *arguments]
        try:
            answer = subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"flwr {' '.join(arguments[:2])} took longer than {timeout_s:g} s") from None
        if answer.returncode != 0:
            raise ProcessError(f"flwr {' '.join(arguments[:2])} failed: {' '.join(answer.stderr.split())[-400:]}")
        return answer.stdout

    def submit(self, app: Path, config: Mapping[str, Any]) -> str:
        """Start a run of an app; return the run's id."""
        settings = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        answer = self.operate("run", str(app), CONNECTION, "--run-config", settings, "--format", "json")
        return str(json.loads(answer[answer.index("{") :])["run-id"])

    def status(self, run: str) -> str:
        """Return a run's status: pending, starting, running, finished:completed, finished:failed, ..."""
        answer = self.operate("list", CONNECTION, "--run-id", run, "--format", "json")
        runs = json.loads(answer[answer.index("{") :])["runs"]
        return str(runs[0]["status"])

    def start(self, name: str, argv: Sequence[str], namespace: str | None = None) -> Child:
        """Start a process that logs to NAME.log and dies with this one."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._in_namespace(namespace), *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    @staticmethod
    def _in_namespace(namespace: str | None) -> list[str]:
        return [] if namespace is None else ["ip", "netns", "exec", namespace]

    @staticmethod
    def _configure(address: str, authority: Path, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f"address = {json.dumps(address)}\nroot-certificates = {json.dumps(str(authority))}\n"
        )
