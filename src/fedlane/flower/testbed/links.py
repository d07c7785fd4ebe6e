"""A radio cell on one Linux machine: a base station and clients as network namespaces, joined by shaped links.

Each client has one link and one address. A lane is what lies under them: switching to it sets the rate of the
client's pair with that lane at both ends of the link, as a radio changes its channel under a stable address, so
that connections live on. Rates count payload: what TCP carries, headers not included.

Needs root and iproute2. No link leads out of the cell: there is no default route.
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
MOST_CLIENTS = 1000
UNSHAPED_MBPS = 1000.0
LOCKS = Path("/run/fedlane")
"""One locked file for each cell whose owner lives."""

WIRE_PER_PAYLOAD = 1514 / 1448
"""Ethernet frame over what TCP carries in it, with timestamps: tbf counts frames."""
_BURST_BYTES = 16_000
_BUFFER_S = 0.3


class LinkError(InputError):
    """The machine does not let us build or shape links."""


def missing() -> str | None:
    """Why this machine cannot have a cell, in a few words; None where it can."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "tc", "setpriv"):
        if shutil.which(command) is None:
            return f"the command {command} is missing (Debian: iproute2, util-linux)"
    return _probed()


@functools.cache
def _probed() -> str | None:
    """Try it once: a container's root may lack the right, and a kernel the token bucket."""
    name = f"fedlane-probe-{secrets.token_hex(3)}"
    try:
        _call(["ip", "netns", "add", name])
        _batch("tc", [f"qdisc add dev lo {_tbf(1.0)}"], name)
    except LinkError as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return None


@dataclass(frozen=True)
class RadioCell:
    """The namespaces and links of one base station and its clients, by name: any process of root may tune them."""

    name: str
    """Every namespace's name begins with it."""
    clients: int

    @property
    def base(self) -> str:
        """The base station's namespace."""
        return f"{self.name}-bs"

    def client(self, client: int) -> str:
        """A client's namespace."""
        return f"{self.name}-c{client}"

    def link(self, client: int) -> str:
        """The base station's end of a client's link; the client's own end is always ``radio``."""
        return f"c{client}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.base, *(self.client(i) for i in range(self.clients)))

    def tune(self, rates_mbps: Mapping[int, float]) -> None:
        """Give each client's link, in both directions, the rate of the pair that it now uses."""
        for client, rate in rates_mbps.items():
            positive(f"the rate of client {client} in Mbit/s", rate)
        shapes = {client: _tbf(rate) for client, rate in rates_mbps.items()}
        _batch("tc", [f"qdisc replace dev {self.link(i)} {shape}" for i, shape in shapes.items()], self.base)
        for i, shape in shapes.items():
            _batch("tc", [f"qdisc replace dev radio {shape}"], self.client(i))

    def processes(self) -> list[int]:
        """Ids of all processes in the cell."""
        found: list[int] = []
        for namespace in self.namespaces:
            answer = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            found.extend(int(line) for line in answer.stdout.split())
        return found


@dataclass
class BuiltRadioCell:
    """A cell that this process built and takes down."""

    cell: RadioCell
    _lock: IO[str] = field(repr=False)

    def close(self) -> None:
        """End every process in the cell and remove it; safe to call twice."""
        _remove(self.cell)
        if not self._lock.closed:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()


@contextlib.contextmanager
def build(clients: int) -> Iterator[RadioCell]:
    """A new cell, gone at the end whatever happens; cells that killed processes left behind are removed first."""
    built = build_cell(clients)
    try:
        yield built.cell
    finally:
        built.close()


def build_cell(clients: int) -> BuiltRadioCell:
    """A new cell that the caller closes. Links are not shaped yet."""
    at_least("clients", clients, 1)
    if clients > MOST_CLIENTS:
        raise InputError(f"clients must be at most {MOST_CLIENTS}, got {clients}")
    reason = missing()
    if reason is not None:
        raise LinkError(f"no links can be built here: {reason}")
    sweep()
    cell = RadioCell(f"{PREFIX}{secrets.token_hex(3)}", clients)
    built = BuiltRadioCell(cell, _locked(cell.name))
    try:
        _create(cell)
    except BaseException:
        built.close()
        raise
    return built


def sweep() -> list[str]:
    """Remove the cells whose owners are dead; returns their names."""
    removed = []
    for path in sorted(LOCKS.glob(f"{PREFIX}*")) if LOCKS.is_dir() else []:
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its owner lives
                continue
            _remove(RadioCell(path.name, _clients_left(path.name)))
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def client_address(client: int) -> tuple[str, str]:
    """Addresses of both ends of a client's link: the base station's and the client's."""
    low = 4 * (client % 64)
    return f"10.201.{1 + client // 64}.{low + 1}", f"10.201.{1 + client // 64}.{low + 2}"


def _locked(name: str) -> IO[str]:
    LOCKS.mkdir(parents=True, exist_ok=True)
    lock = (LOCKS / name).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write(f"{os.getpid()}\n")  # for people: whose it is
    lock.flush()
    return lock


def _create(cell: RadioCell) -> None:
    _batch("ip", [f"netns add {namespace}" for namespace in cell.namespaces])
    base = ["link set lo up", f"addr add {SERVER_ADDRESS}/32 dev lo"]
    for i in range(cell.clients):
        ours, theirs = client_address(i)
        base += [
            f"link add {cell.link(i)} type veth peer name radio netns {cell.client(i)}",
            f"addr add {ours}/30 dev {cell.link(i)}",
            f"link set {cell.link(i)} up",
        ]
    _batch("ip", base, cell.base)
    for i in range(cell.clients):
        ours, theirs = client_address(i)
        lines = ["link set lo up", f"addr add {theirs}/30 dev radio", "link set radio up"]
        _batch("ip", [*lines, f"route add {SERVER_ADDRESS}/32 via {ours}"], cell.client(i))
    for namespace in cell.namespaces:
        # BBR drops heavily under a token bucket; Reno is in every kernel and allowed in every namespace
        _call(["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"])


def _clients_left(name: str) -> int:
    """The number of clients that a left cell's namespaces need for all of them to be named."""
    numbers = [
        int(path.name.rsplit("-c", 1)[1])
        for path in Path("/run/netns").glob(f"{name}-c*")
        if path.name.rsplit("-c", 1)[1].isdigit()
    ]
    return max(numbers, default=-1) + 1


def _remove(cell: RadioCell) -> None:
    end = time.monotonic() + 10.0
    while (left := cell.processes()) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for namespace in cell.namespaces:  # one by one: some may be gone
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _tbf(rate_mbps: float) -> str:
    """A token bucket: a burst of ten frames, and a queue of 0.3 s, never too short for a window to open."""
    wire_bps = rate_mbps * 1e6 * WIRE_PER_PAYLOAD
    burst = int(max(_BURST_BYTES, wire_bps / 8 * 0.004))  # at least one tick's worth
    limit = int(max(64_000, wire_bps / 8 * _BUFFER_S)) + burst
    return f"root tbf rate {wire_bps:.0f}bit burst {burst} limit {limit}"


def _batch(command: str, lines: Sequence[str], namespace: str | None = None) -> None:
    """Many commands of `ip` or `tc` in one process."""
    if lines:
        place = [] if namespace is None else ["-netns", namespace]
        _call([command, *place, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _call(argv: Sequence[str], stdin: str = "") -> None:
    answer = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if answer.returncode != 0:
        raise LinkError(f"{argv[0]} failed: {' '.join((answer.stderr or answer.stdout).split()) or argv}")
