"""Lane switches: what puts a client's upload onto the lane that it was given.

A lane is whatever the operator can switch: a modem's band, an interface, a slice. A switch is anything that is called
with the lane's number, 0 to N - 1, before the client trains, and raises where it did not succeed. A client whose switch
fails does not train; it says so, and counts as late. How the model comes down is the base station's side of the same
lane: `LaneStrategy(before_round=...)`; docs/flower.md has both.
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
    """The lane could not be switched."""


class LaneSwitch(Protocol):
    """Puts this client onto a lane, or raises."""

    def __call__(self, lane: int, /) -> None: ...


class NoSwitch:
    """Nothing to switch: a lane is the right to take part in a round."""

    def __call__(self, lane: int, /) -> None:
        pass


class CommandSwitch:
    """A program that switches: ``CommandSwitch("modem-band --to {lane}")``.

    Run without a shell; `{lane}` becomes the number in every argument. An exit status other than 0, or more than
    ``timeout_s``, is a failure, and the program's whole process group is ended.
    """

    def __init__(self, command: str | Sequence[str], *, timeout_s: float = 10.0) -> None:
        self.command = tuple(shlex.split(command) if isinstance(command, str) else command)
        self.timeout_s = timeout_s
        if not any("{lane}" in part for part in self.command[1:]):
            raise InputError(
                f"a switch's command must have {{lane}} among its arguments, got {shlex.join(self.command)!r}"
            )
        if not timeout_s > 0:
            raise InputError(f"timeout_s must be greater than 0, got {timeout_s}")

    def __call__(self, lane: int, /) -> None:
        run_program([part.replace("{lane}", str(lane)) for part in self.command], self.timeout_s)


def switch_node(given: LaneSwitch | None, config: Mapping[str, object], lane: int) -> None:
    """Switch by what is given, else by the command that the node's owner put into its configuration, if any."""
    if given is not None:
        given(lane)
    elif "fedlane-switch" in config:
        CommandSwitch(str(config["fedlane-switch"]))(lane)


@dataclass(frozen=True)
class Via:
    """How to reach the server over one lane."""

    interface: str
    gateway: str | None = None
    """The next hop; None where the server is on the interface's own link, or the link has two ends only."""


class PolicyRoutingSwitch:
    """Linux policy routing: traffic to the server, and nothing else, leaves by the lane's interface.

    One routing table of its own holds one route to the server, which is replaced at once; the main table stays as it
    is. Connections that are open follow the route. The client needs one ``source`` address that all lanes carry (on
    `lo` or a dummy interface), or else an open connection keeps the address of the lane on which it began. Needs
    CAP_NET_ADMIN. Where a lane's interface goes down, the kernel drops its route and the main table serves until the
    next switch, so that the client stays in reach.
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
            raise InputError(f"a switch needs addresses, not names: {error}") from None
        if not lanes:
            raise InputError("lanes must name at least 1 interface, got none")
        if not 1 <= table < 2**31 or table in (253, 254, 255):
            raise InputError(f"table must be a routing table of its own, 1 to 2147483647 but 253 to 255, got {table}")
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
        # What counts is where a packet would really go: another rule may come first.
        taken = json.loads(self._ip("-json", "route", "get", str(self.server)))[0].get("dev")
        if taken != via.interface:
            raise SwitchError(
                f"traffic to {self.server} leaves by {taken}, not by {via.interface}: another rule is first"
            )

    def remove(self) -> None:
        """Take rule and route away again."""
        for words in (
            ["rule", "del", "to", str(self.server), "lookup", str(self.table)],
            ["route", "flush", *self._table],
        ):
            with contextlib.suppress(SwitchError):
                self._ip(*words)

    @property
    def _table(self) -> list[str]:
        return ["table", str(self.table)]

    def _ip(self, *words: str) -> str:
        return run_program(["ip", f"-{self.server.version}", *words], self.timeout_s)


def run_program(argv: Sequence[str], timeout_s: float) -> str:
    """What a program says, if it ends well and in time; else a `SwitchError` with its last line."""
    # Files, not pipes: a daemon that the program leaves behind may hold them open for good.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=said, start_new_session=True)
        except OSError as error:
            raise SwitchError(f"{argv[0]} cannot be run: {error.strerror}") from error
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise SwitchError(f"{argv[0]} took longer than {timeout_s:g} s") from None
        said.seek(0)
        lines = said.read(4096).decode(errors="replace").strip().splitlines()
        if status != 0:
            raise SwitchError(f"{argv[0]} failed with status {status}{': ' + lines[-1][:200] if lines else ''}")
        out.seek(0)
        return out.read(65536).decode(errors="replace")
