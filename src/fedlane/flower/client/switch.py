"""Lane switches, which direct a client's upload to its assigned lane.

A lane is anything that the operator can switch: a modem's band, a network interface, a slice. A switch is a callable
that takes the lane's number, 0 to N - 1, before the client trains, and raises an exception on failure. A client whose
switch fails reports the failure instead of training, and counts as late. The download is switched by the base station:
`LaneStrategy(before_round=...)`. See docs/flower.md for both directions.
"""

import contextlib
import ipaddress
import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedlane.validate import InputError


class SwitchError(InputError):
    """Switching to a lane failed."""


class LaneSwitch(Protocol):
    """A callable that switches this client to a lane, or raises an exception.

    It is called with the lane's number, 0 to N - 1, before the client trains. Any such function is a switch.

    Examples:
        >>> from fedlane.flower import LaneSwitch
        >>> def set_band(lane: int) -> None:
        ...     print(f"AT+BAND={lane}")
        >>> switch: LaneSwitch = set_band
        >>> switch(2)
        AT+BAND=2
    """

    def __call__(self, lane: int, /) -> None: ...


class NoSwitch:
    """A switch that does nothing, for lanes that are only permissions to take part in a round.

    Examples:
        >>> from fedlane.flower import NoSwitch
        >>> NoSwitch()(0)
    """

    def __call__(self, lane: int, /) -> None:
        pass


class CommandSwitch:
    """A switch that runs a program, without a shell.

    An exit status other than 0 is a failure. On a timeout, the program's whole process group is killed.

    Args:
        command: Program and arguments, as one string or as a sequence. `{lane}` is replaced by the lane's number in
            every argument.
        timeout_s: Time limit in seconds.

    Raises:
        InputError: If no argument contains `{lane}`, or the time limit is not positive.

    Examples:
        >>> from fedlane.flower import CommandSwitch
        >>> switch = CommandSwitch("test {lane} -lt 3")
        >>> switch(2)
    """

    def __init__(self, command: str | Sequence[str], *, timeout_s: float = 10.0) -> None:
        self.command = tuple(shlex.split(command) if isinstance(command, str) else command)
        self.timeout_s = timeout_s
        if not any("{lane}" in part for part in self.command[1:]):
            raise InputError(
                f"an argument of the switch command must contain {{lane}}, got {shlex.join(self.command)!r}"
            )
        if not timeout_s > 0:
            raise InputError(f"timeout_s must be greater than 0, got {timeout_s}")

    def __call__(self, lane: int, /) -> None:
        run_program([part.replace("{lane}", str(lane)) for part in self.command], self.timeout_s)


def switch_node(given: LaneSwitch | None, config: Mapping[str, object], lane: int) -> None:
    """Switch a node's lane by the given switch, else by the command in the node's configuration, if any."""
    if given is not None:
        given(lane)
    elif "fedlane-switch" in config:
        CommandSwitch(str(config["fedlane-switch"]))(lane)


@dataclass(frozen=True)
class Via:
    """The route to the server over one lane.

    Attributes:
        interface: Name of the network interface.
        gateway: Address of the next hop; None if the server is on the interface's own link, or if the link is
            point-to-point.

    Examples:
        >>> from fedlane.flower import Via
        >>> Via("wwan0", "10.1.0.1")
        Via(interface='wwan0', gateway='10.1.0.1')
    """

    interface: str
    gateway: str | None = None


class PolicyRoutingSwitch:
    """A switch that uses Linux policy routing: traffic to the server leaves by the lane's interface.

    A separate routing table holds one route, to the server, which is replaced atomically; the main table and all other
    traffic are not affected. Open connections follow the route. Needs CAP_NET_ADMIN. If a lane's interface goes down,
    the kernel drops the route, and the main table is used until the next switch, so that the client stays reachable.

    Args:
        server: IP address of the server.
        lanes: Route of each lane, in order; a string names an interface without a gateway.
        source: Address of the client that all lanes carry (on `lo` or a dummy interface). Without one, an open
            connection keeps the address of the lane on which it was opened.
        table: Number of the routing table, which nothing else may use.
        timeout_s: Time limit in seconds of each `ip` command.

    Raises:
        InputError: If an address is not an IP address, there are no lanes, or the table is reserved.

    Examples:
        >>> from fedlane.flower import PolicyRoutingSwitch, Via
        >>> switch = PolicyRoutingSwitch("192.0.2.1", [Via("wwan0", "10.1.0.1"), "wlan0"], source="10.9.0.2")
    """

    def __init__(
        self,
        server: str,
        lanes: Sequence[Via | str],
        *,
        source: str | None = None,
        table: int = 2700,
        timeout_s: float = 10.0,
    ) -> None:
        try:
            self.server = ipaddress.ip_address(server)
            self.source = None if source is None else ipaddress.ip_address(source)
        except ValueError as error:
            raise InputError(f"server and source must be IP addresses: {error}") from None
        if not lanes:
            raise InputError("lanes must name at least 1 interface, got none")
        if not 1 <= table < 2**31 or table in (253, 254, 255):
            raise InputError(f"table must be from 1 to 2147483647, but not 253, 254 or 255, got {table}")
        self.lanes = tuple(Via(lane) if isinstance(lane, str) else lane for lane in lanes)
        self.table, self.timeout_s = table, timeout_s

    def __call__(self, lane: int, /) -> None:
        if not 0 <= lane < len(self.lanes):
            raise SwitchError(f"lane must be at least 0 and less than {len(self.lanes)}, got {lane}")
        via = self.lanes[lane]
        gateway = ["via", via.gateway] if via.gateway else []
        source = ["src", str(self.source)] if self.source else []
        self._ip("route", "replace", str(self.server), *gateway, "dev", via.interface, *source, *self._table)
        rule = ["to", str(self.server), "lookup", str(self.table)]
        if not json.loads(self._ip("-json", "rule", "show", *rule) or "[]"):
            self._ip("rule", "add", "priority", str(self.table), *rule)
        # Check where a packet would actually go, because another rule may come first.
        interface = json.loads(self._ip("-json", "route", "get", str(self.server)))[0].get("dev")
        if interface != via.interface:
            raise SwitchError(
                f"traffic to {self.server} leaves by {interface}, not by {via.interface}: another rule has precedence"
            )

    def remove(self) -> None:
        """Remove the rule and the route."""
        for arguments in (
            ["rule", "del", "to", str(self.server), "lookup", str(self.table)],
            ["route", "flush", *self._table],
        ):
            with contextlib.suppress(SwitchError):
                self._ip(*arguments)

    @property
    def _table(self) -> list[str]:
        return ["table", str(self.table)]

    def _ip(self, *arguments: str) -> str:
        return run_program(["ip", f"-{self.server.version}", *arguments], self.timeout_s)


def run_program(argv: Sequence[str], timeout_s: float) -> str:
    """Return a program's output; raise `SwitchError` with its last error line if it fails or takes too long."""
    # Files, not pipes: a daemon that the program leaves behind could hold pipes open forever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise SwitchError(f"cannot run {argv[0]}: {error.strerror}") from error
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SwitchError(f"{argv[0]} took longer than {timeout_s:g} s") from None
        errors.seek(0)
        lines = errors.read(4096).decode(errors="replace").strip().splitlines()
        if status != 0:
            raise SwitchError(f"{argv[0]} failed with status {status}{': ' + lines[-1][:200] if lines else ''}")
        out.seek(0)
        return out.read(65536).decode(errors="replace")
