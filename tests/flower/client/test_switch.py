"""Lane switches: commands with time limits, and real packets that leave by the chosen interface."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedlane.flower.client.switch import CommandSwitch, NoSwitch, PolicyRoutingSwitch, SwitchError
from fedlane.validate import InputError
from support.parts import missing
from support.waiting import wait_for


def test_a_command_runs_with_the_lane_and_without_a_shell(tmp_path):
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    for lane in (0, 3):
        CommandSwitch([sys.executable, "-c", code, str(tmp_path / "lane"), "to {lane}; $HOME"])(lane)
        assert (tmp_path / "lane").read_text() == f"to {lane}; $HOME"
    assert CommandSwitch("modem 'band {lane}'").command == ("modem", "band {lane}")
    NoSwitch()(7)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["false", "{lane}"], "false failed with status 1"),
        (["no-such-program", "{lane}"], "cannot run no-such-program: No such file"),
        (["sh", "-c", "echo first >&2; echo lane is busy >&2; exit 3", "{lane}"], "status 3: lane is busy"),
    ],
)
def test_a_failed_command_reports_its_last_error_line(command, message):
    with pytest.raises(SwitchError, match=message):
        CommandSwitch(command)(0)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    hang = CommandSwitch(["sh", "-c", f"sleep 1000 & echo $! > {pid}; wait", "{lane}"], timeout_s=0.5)
    with pytest.raises(SwitchError, match=r"longer than 0\.5 s"):
        hang(0)
    wait_for(lambda: not runs(pid))


def test_a_daemon_left_behind_does_not_block_the_switch(tmp_path):
    pid = tmp_path / "pid"
    CommandSwitch(["sh", "-c", f"sleep 1000 & echo $! > {pid}", "{lane}"])(0)
    assert runs(pid)
    os.kill(int(pid.read_text()), signal.SIGKILL)


def runs(pid):
    """Return whether the process runs whose id is in a file."""
    try:
        return Path(f"/proc/{pid.read_text().strip()}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CommandSwitch("modem up"), "must contain {lane}"),
        (lambda: CommandSwitch("modem {lane}", timeout_s=0), "timeout_s must be"),
        (lambda: PolicyRoutingSwitch("server.example", ["eth0"]), "must be IP addresses"),
        (lambda: PolicyRoutingSwitch("10.0.0.1", []), "at least 1 interface"),
        (lambda: PolicyRoutingSwitch("10.0.0.1", ["eth0"], table=254), "table must be from 1"),
    ],
)
def test_invalid_switches_are_rejected(make, message):
    with pytest.raises(InputError, match=message):
        make()


CLIENT, SERVER = "10.77.1.1", "10.77.0.1"


@pytest.fixture
def two_lanes():
    """Join a client and a server namespace by two links, lane0 and lane1; each has one address for both."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        missing("network namespaces need root and iproute2")
    client, server = f"fbc{os.getpid()}", f"fbs{os.getpid()}"

    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for space, address in ((client, CLIENT), (server, SERVER)):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", f"{address}/32", "dev", "lo")
        for lane in (0, 1):
            ip(
                "-n",
                client,
                "link",
                "add",
                f"lane{lane}",
                "type",
                "veth",
                "peer",
                "name",
                f"lane{lane}",
                "netns",
                server,
            )
            for space, end in ((client, 2), (server, 1)):
                ip("-n", space, "addr", "add", f"10.78.{lane}.{end}/24", "dev", f"lane{lane}")
                ip("-n", space, "link", "set", f"lane{lane}", "up")
        ip("-n", server, "route", "add", CLIENT, "via", "10.78.0.2")
        yield client, server
    finally:
        for space in (client, server):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)


SENDER = """
import json, socket, subprocess, sys, threading
from fedlane.flower.client.switch import PolicyRoutingSwitch, SwitchError, Via
def sent():
    return [int(open(f"/sys/class/net/lane{k}/statistics/tx_bytes").read()) for k in (0, 1)]
switch = PolicyRoutingSwitch("%(server)s", [Via("lane0", "10.78.0.1"), "lane1"], source="%(client)s")
switch(0)
link = socket.create_connection(("%(server)s", 5000), timeout=60)
result = {"moved": [], "rules": None, "error": ""}
for lane in (0, 1, 0, 1):
    switch(lane)
    before = sent()
    link.sendall(bytes(200_000))
    link.recv(1)
    result["moved"].append([after - first for after, first in zip(sent(), before)])
rules = lambda: subprocess.run(["ip", "rule"], capture_output=True, text=True).stdout
result["rules"] = rules().count("2700")
subprocess.run(["ip", "rule", "add", "priority", "5", "to", "%(server)s", "lookup", "99"], check=True)
subprocess.run(["ip", "route", "add", "%(server)s", "dev", "lane1", "table", "99"], check=True)
try:
    switch(0)
except SwitchError as error:
    result["error"] = str(error)
switch.remove()
result["after"] = rules().count("2700")
print(json.dumps(result))
"""

RECEIVER = """
import socket
with socket.create_server(("%(server)s", 5000)) as listener:
    print("ready", flush=True)
    link, _ = listener.accept()
    for _ in range(4):
        left = 200_000
        while left:
            left -= len(link.recv(left))
        link.sendall(b"k")
"""


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_an_open_connection_follows_the_switched_lane(two_lanes):
    """Of 200 kB sent over one connection after each switch, almost all is counted on the lane's interface."""
    client, server = two_lanes
    names = {"client": CLIENT, "server": SERVER}
    receiver = subprocess.Popen(
        ["ip", "netns", "exec", server, sys.executable, "-c", RECEIVER % names], stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiver.stdout.readline() == "ready\n"
        sender = subprocess.run(
            ["ip", "netns", "exec", client, sys.executable, "-c", SENDER % names],
            capture_output=True,
            text=True,
            timeout=180,
        )
    finally:
        receiver.kill()
        receiver.wait()
        receiver.stdout.close()
    assert sender.returncode == 0, sender.stderr
    result = json.loads(sender.stdout)
    for lane, moved in zip((0, 1, 0, 1), result["moved"], strict=True):
        assert moved[lane] > 200_000
        assert moved[1 - lane] < 5_000
    assert result["rules"] == 2  # one rule, which shows the number as its priority and as its table
    assert "leaves by lane1, not by lane0" in result["error"]
    assert result["after"] == 0


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_missing_interface_is_a_failure(two_lanes):
    client, _ = two_lanes
    code = (
        "from fedlane.flower.client.switch import PolicyRoutingSwitch\n"
        f"try: PolicyRoutingSwitch('{SERVER}', ['nowhere0'])(0)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        ["ip", "netns", "exec", client, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("SwitchError ip failed with status")
    assert "nowhere0" in done.stdout
