"""A radio cell on one Linux machine: a base station and clients as network namespaces, joined by shaped links.

Each client has one link and one address. Switching to a lane sets the rate of the pair (client, lane) at both ends of
the link. Like a radio that changes its channel, this keeps the address, so open connections continue. Rates count
the payload that TCP carries, without headers.

Needs root and iproute2. There is no default route, so no traffic leaves the cell.
"""

import contextlib
import fcntl
import functools
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedlane.validate import InputError, at_least, positive

PREFIX = "fl-"
SERVER_ADDRESS = "10.201.0.1"
MAX_CLIENTS = 1000
UNSHAPED_MBPS = 1000.0
LOCKS = Path("/run/fedlane")
"""Folder with one file per cell, locked for as long as the cell's owner runs."""

WIRE_PER_PAYLOAD = 1514 / 1448
"""Bytes of an Ethernet frame per byte of TCP payload (with timestamps): the kernel's token bucket counts frames."""
_BURST_BYTES = 16_000
_BUFFER_S = 0.3


class LinkError(InputError):
    """Links cannot be built or shaped on this machine."""


def unsupported_reason() -> str | None:
    """Return why no cell can be built on this machine; None if one can."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "tc", "setpriv"):
        if shutil.which(command) is None:
            return f"the command {command} is missing (Debian: iproute2, util-linux)"
    return _probe()


@functools.cache
def _probe() -> str | None:
    """Try to build a link: root in a container may lack the permission, and a kernel the token bucket filter."""
    name = f"fedlane-probe-{secrets.token_hex(3)}"
    try:
        _run(["ip", "netns", "add", name])
        _run_batch("tc", [f"qdisc add dev lo {_tbf(1.0)}"], name)
    except LinkError as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return None


@dataclass(frozen=True)
class RadioCell:
    """The namespaces and links of one base station and its clients; any root process can tune them by name."""

    name: str
    """Prefix of all namespaces' names."""
    clients: int

    @property
    def base(self) -> str:
        """Namespace of the base station."""
        return f"{self.name}-bs"

    def client(self, client: int) -> str:
        """Return the namespace of a client."""
        return f"{self.name}-c{client}"

    def link(self, client: int) -> str:
        """Return the base station's interface for a client; the client's own interface is always ``radio``."""
        return f"c{client}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All namespaces of the cell, the base station's first."""
        return (self.base, *(self.client(i) for i in range(self.clients)))

    def tune(self, rates_mbps: Mapping[int, float]) -> None:
        """Set the rates of clients' links, in both directions."""
        for client, rate in rates_mbps.items():
            positive(f"the rate of client {client} in Mbit/s", rate)
        shapes = {client: _tbf(rate) for client, rate in rates_mbps.items()}
        _run_batch("tc", [f"qdisc replace dev {self.link(i)} {shape}" for i, shape in shapes.items()], self.base)
        for i, shape in shapes.items():
            _run_batch("tc", [f"qdisc replace dev radio {shape}"], self.client(i))

    def processes(self) -> list[int]:
        """Return the ids of all processes in the cell."""
        ids: list[int] = []
        for namespace in self.namespaces:
            answer = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            ids.extend(int(line) for line in answer.stdout.split())
        return ids


@dataclass
class BuiltRadioCell:
    """A cell that this process has built and must close."""

    cell: RadioCell
    _lock: IO[str] = field(repr=False)

    def close(self) -> None:
        """Kill every process in the cell and remove it; may be called twice."""
        _remove(self.cell)
        if not self._lock.closed:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()


@contextlib.contextmanager
def temporary_cell(clients: int) -> Iterator[RadioCell]:
    """Build a cell and remove it on exit; cells left behind by killed processes are removed first."""
    built = build_cell(clients)
    try:
        yield built.cell
    finally:
        built.close()


def build_cell(clients: int) -> BuiltRadioCell:
    """Build a cell, with unshaped links, that the caller closes."""
    at_least("clients", clients, 1)
    if clients > MAX_CLIENTS:
        raise InputError(f"clients must be at most {MAX_CLIENTS}, got {clients}")
    reason = unsupported_reason()
    if reason is not None:
        raise LinkError(f"cannot build links: {reason}")
    remove_stale_cells()
    cell = RadioCell(f"{PREFIX}{secrets.token_hex(3)}", clients)
    built = BuiltRadioCell(cell, _lock_file(cell.name))
    try:
        _create(cell)
    except BaseException:
        built.close()
        raise
    return built


def remove_stale_cells() -> list[str]:
    """Remove the cells whose owners have died, and return their names."""
    removed = []
    for path in sorted(LOCKS.glob(f"{PREFIX}*")) if LOCKS.is_dir() else []:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its owner is running
                continue
            _remove(RadioCell(path.name, _count_clients(path.name)))
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def client_address(client: int) -> tuple[str, str]:
    """Return the addresses of a client's link: the base station's and the client's."""
    low = 4 * (client % 64)
    return f"10.201.{1 + client // 64}.{low + 1}", f"10.201.{1 + client // 64}.{low + 2}"


def _lock_file(name: str) -> IO[str]:
    LOCKS.mkdir(parents=True, exist_ok=True)
    lock = (LOCKS / name).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write(f"{os.getpid()}\n")  # for human readers of the file
    lock.flush()
    return lock


def _create(cell: RadioCell) -> None:
    _run_batch("ip", [f"netns add {namespace}" for namespace in cell.namespaces])
    base = ["link set lo up", f"addr add {SERVER_ADDRESS}/32 dev lo"]
    for i in range(cell.clients):
        base_address, _ = client_address(i)
        base += [
            f"link add {cell.link(i)} type veth peer name radio netns {cell.client(i)}",
            f"addr add {base_address}/30 dev {cell.link(i)}",
            f"link set {cell.link(i)} up",
        ]
    _run_batch("ip", base, cell.base)
    for i in range(cell.clients):
        base_address, address = client_address(i)
        lines = ["link set lo up", f"addr add {address}/30 dev radio", "link set radio up"]
        _run_batch("ip", [*lines, f"route add {SERVER_ADDRESS}/32 via {base_address}"], cell.client(i))
    for namespace in cell.namespaces:
        # BBR loses many packets under a token bucket; Reno is in every kernel and allowed in every namespace.
        _run(["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"])


def _count_clients(name: str) -> int:
    """Return the number of clients of a stale cell, by the highest number among its namespaces."""
    numbers = [
        int(path.name.rsplit("-c", 1)[1])
        for path in Path("/run/netns").glob(f"{name}-c*")
        if path.name.rsplit("-c", 1)[1].isdigit()
    ]
    return max(numbers, default=-1) + 1


def _remove(cell: RadioCell) -> None:
    end = time.monotonic() + 10.0
    while (processes := cell.processes()) and time.monotonic() < end:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for namespace in cell.namespaces:  # separately, because some may be missing
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _tbf(rate_mbps: float) -> str:
    """Return a token bucket: bursts of ten frames, a queue of 0.3 s but at least 64 kB, so that TCP windows open."""
    wire_bps = rate_mbps * 1e6 * WIRE_PER_PAYLOAD
    burst = int(max(_BURST_BYTES, wire_bps / 8 * 0.004))  # at least the bytes of one tick
    limit = int(max(64_000, wire_bps / 8 * _BUFFER_S)) + burst
    return f"root tbf rate {wire_bps:.0f}bit burst {burst} limit {limit}"


def _run_batch(command: str, lines: Sequence[str], namespace: str | None = None) -> None:
    """Run several `ip` or `tc` commands in one process."""
    if lines:
        options = [] if namespace is None else ["-netns", namespace]
        _run([command, *options, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _run(argv: Sequence[str], stdin: str = "") -> None:
    answer = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if answer.returncode != 0:
        raise LinkError(f"{argv[0]} failed: {' '.join((answer.stderr or answer.stdout).split()) or argv}")
