"""Flower's processes, started, waited for and ended: SuperLink, SuperNodes, the proxy, and runs of an app.

Everything they write lies in one folder. Telemetry and update calls are off. A child dies with its parent, even if
that is killed; nothing is left to a garbage collector or to luck.
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

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Both: with either alone Flower still calls home."""
CONNECTION = "federation"
"""The name of our SuperLink in Flower's own configuration."""
_END_S = 5.0
_GIVE_WAY = 10
"""A niceness."""
_POLL_S = 0.05


class ProcessError(InputError):
    """A process of Flower's did not do what it was started for."""


@dataclass
class Child:
    """A process of ours and its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Return once ``ready`` holds; a dead process or a long wait is an error that quotes the log's end."""
        end = time.monotonic() + timeout_s
        while not ready():
            if self.process.poll() is not None:
                raise ProcessError(f"{self.name} ended with {self.process.returncode} before {what}: {self._tail()}")
            if time.monotonic() > end:
                raise ProcessError(f"{self.name}: no {what} within {timeout_s:g} s: {self._tail()}")
            time.sleep(_POLL_S)

    def listens(self, port: int) -> bool:
        """Whether anything in the process's namespace listens on a TCP port."""
        wanted = f":{port:04X}"
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                    local, state = line.split()[1], line.split()[3]
                    if state == "0A" and local.endswith(wanted):
                        return True
        return False

    def admitted(self) -> bool:
        """Whether a node has been given its id."""
        return "SuperNode ID:" in self.said()

    def ask_to_end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def stop(self, timeout_s: float = _END_S) -> None:
        """Ask it and its group to end, then make them."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):  # the group, though its leader may have gone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _tail(self) -> str:
        lines = [" ".join(line.split()) for line in self.said().splitlines() if line.strip()]
        return " | ".join(lines[-4:])[-600:] or "it said nothing"


def give_way(process: int) -> None:
    """Let a process that leads a session, and what it starts, have only what other sessions leave of the machine.

    On one machine nodes stand for other machines: their start-up must not slow the base station. Linux shares the
    processors between sessions first and only then by niceness, so both are set; where neither can be, nothing happens.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, _GIVE_WAY)
    for _ in range(5):
        try:
            Path(f"/proc/{process}/autogroup").write_text(str(_GIVE_WAY))
        except BlockingIOError:  # only root may do this more often than every 0.1 s
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


class FlowerCluster:
    """A SuperLink with TLS and node authentication, its SuperNodes, and the runs that an operator submits.

    Leaving the context ends everything that it started. ``namespace`` is where the SuperLink, the proxy and the
    operator are; each node is started where it is told to be.
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
        """``address``:``port`` is the SuperLink; with ``node_port``, nodes reach a proxy there and it is local."""
        self.folder = folder
        self.namespace = namespace
        self.superlink_address = f"{'127.0.0.1' if node_port else address}:{port}"
        self.node_address = f"{address}:{node_port or port}"
        self.files: ServerFiles = make_server_files(folder / "keys", (address, "127.0.0.1", "localhost"))
        self.children: list[Child] = []
        self._port, self._node_port = port, node_port
        self._environment = {**os.environ, **QUIET, **(environment or {}), "FLWR_HOME": str(folder / "flwr")}
        # Flower starts its helpers by name
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._configure(self.superlink_address, self.files.authority, folder / "flwr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything: nodes are asked first, so that they can say goodbye."""
        for child in reversed(self.children):
            child.ask_to_end()
        while self.children:
            self.children.pop().stop()

    def start_superlink(self) -> Child:
        """Start the SuperLink, and the proxy if there is to be one; returns when both listen."""
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
        """A key for a node; not registered yet."""
        return make_node_files(self.folder / "keys", name)

    def register(self, *nodes: NodeFiles) -> None:
        """Let the SuperLink know the nodes' public keys, as its operator."""
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
        """Start a node, which gives way to the base station; ``options`` replaces how it connects.

        With ``stock`` it is Flower's own command; otherwise ours, with modules that its apps will want.
        """
        ours = ["fedlane-supernode", *(word for module in preload for word in ("--preload", module))]
        settings = " ".join(f"{k}={json.dumps(v)}" for k, v in (config or {}).items())
        secure = ["--root-certificates", str(self.files.authority)]
        node = self.start(
            name,
            [
                *(["flower-supernode"] if stock else ours),
                *("--superlink", self.node_address, "--host", "127.0.0.1", "--port", str(port)),
                *(secure if options is None else options),
                *([] if key is None else ["--auth-supernode-private-key", str(key.private)]),
                *(["--node-config", settings] if settings else []),
            ],
            namespace,
        )
        give_way(node.process.pid)
        return node

    def wait_for_nodes(self, nodes: Sequence[Child], timeout_s: float = 90.0) -> None:
        """Return once every node has been admitted."""
        end = time.monotonic() + timeout_s
        for node in nodes:
            node.wait_for(node.admitted, max(1.0, end - time.monotonic()), "admission")

    def operate(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Flower's own command line, as the operator beside the SuperLink."""
        argv = [*self._place(self.namespace), "flwr", *arguments]
        try:
            answer = subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"flwr {' '.join(arguments[:2])} took longer than {timeout_s:g} s") from None
        if answer.returncode != 0:
            raise ProcessError(f"flwr {' '.join(arguments[:2])} failed: {' '.join(answer.stderr.split())[-400:]}")
        return answer.stdout

    def submit(self, app: Path, config: Mapping[str, Any]) -> str:
        """Start a run of an app; returns its id."""
        settings = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        answer = self.operate("run", str(app), CONNECTION, "--run-config", settings, "--format", "json")
        return str(json.loads(answer[answer.index("{") :])["run-id"])

    def status(self, run: str) -> str:
        """A run's status in Flower's words: pending, starting, running, finished:completed, finished:failed, ..."""
        answer = self.operate("list", CONNECTION, "--run-id", run, "--format", "json")
        runs = json.loads(answer[answer.index("{") :])["runs"]
        return str(runs[0]["status"])

    def start(self, name: str, argv: Sequence[str], namespace: str | None = None) -> Child:
        """A process of ours, logging to NAME.log, that dies with us."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._place(namespace), *argv],
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
    def _place(namespace: str | None) -> list[str]:
        return [] if namespace is None else ["ip", "netns", "exec", namespace]

    @staticmethod
    def _configure(address: str, authority: Path, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f"address = {json.dumps(address)}\nroot-certificates = {json.dumps(str(authority))}\n"
        )
