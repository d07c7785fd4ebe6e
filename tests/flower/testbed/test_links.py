"""Real links: shaped in both directions, switched under an open connection, isolated, and removed at the end."""

import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane.flower.testbed import links, rates
from fedlane.scenario import Scenario
from fedlane.validate import InputError
from support.parts import missing
from support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("flower")


@pytest.fixture
def cell():
    reason = links.unsupported_reason()
    if reason is not None:
        missing(f"real links cannot be built here: {reason}")
    with links.temporary_cell(2) as built:
        yield built


PEER = """
import socket, sys
listener = socket.create_server(("10.201.0.1", 5001))
print("ready", flush=True)
link, _ = listener.accept()
while request := link.recv(8):
    direction, count = request[:1], int(request[1:])
    if direction == b"d":
        link.sendall(bytes(count))
    else:
        while count:
            count -= len(link.recv(min(count, 65536)))
        link.sendall(b"k")
"""
MOVER = """
import json, socket, subprocess, sys, time
from fedlane.flower.testbed.links import RadioCell
cell, moves = RadioCell(sys.argv[1], 2), json.loads(sys.argv[2])
link = socket.create_connection(("10.201.0.1", 5001))
def shape(namespace, device):
    words = ["tc", "-n", namespace, "-j", "qdisc", "show", "dev", device]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]
moved = []
for direction, rate, count in moves:
    cell.tune({0: rate, 1: 0.1})
    begin = time.monotonic()
    link.sendall(b"%s%07d" % (direction.encode(), count))
    if direction == "d":
        while count:
            count -= len(link.recv(min(count, 65536)))
    else:
        link.sendall(bytes(count))
        link.recv(1)
    seconds = time.monotonic() - begin
    moved.append((seconds, [shape(cell.base, cell.link(0)), shape(cell.client(0), "radio")]))
print(json.dumps(moved))
"""


@pytest.mark.slow
def test_an_open_connection_gets_the_rate_of_its_pair_in_both_directions(cell):
    """Across four switches of one connection no transfer is faster than size / rate, and the kernel has that rate."""
    moves = [("d", 4.0, 250_000), ("u", 4.0, 250_000), ("d", 20.0, 1_000_000), ("u", 1.0, 100_000), ("d", 2.0, 200_000)]
    for (_, rate, count), (seconds, shapes) in zip(moves, transfers(cell, moves), strict=True):
        assert seconds > 0.97 * (count - 16_000) * 8e-6 / rate, (rate, seconds)  # the bucket's burst passes at once
        bytes_per_s = 1e6 / 8 * rate * links.WIRE_PER_PAYLOAD
        assert [shape["options"]["rate"] for shape in shapes] == pytest.approx([bytes_per_s] * 2, rel=0.01)


def transfers(cell, moves):
    """Move data over one connection of client 0; return the duration of each move and the shape of both ends."""
    peer = subprocess.Popen(
        ["ip", "netns", "exec", cell.base, sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert peer.stdout.readline() == "ready\n"
        mover = ["ip", "netns", "exec", cell.client(0), sys.executable, "-c", MOVER, cell.name, json.dumps(moves)]
        return json.loads(subprocess.run(mover, capture_output=True, text=True, check=True, timeout=180).stdout)
    finally:
        peer.kill()
        peer.wait()
        peer.stdout.close()


def test_a_client_reaches_the_base_station_only(cell):
    code = (
        "import socket, errno\n"
        "for address in ('10.201.0.1', '10.201.1.6', '198.51.100.1'):\n"
        "    s = socket.socket(); s.settimeout(2)\n"
        "    print(errno.errorcode[s.connect_ex((address, 9))])\n"
    )
    done = subprocess.run(
        ["ip", "netns", "exec", cell.client(0), sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert links.client_address(1)[1] == "10.201.1.6"
    assert done.stdout.split() == ["ECONNREFUSED", "ENETUNREACH", "ENETUNREACH"]


OWNER = """
import sys, time
from pathlib import Path
from fedlane.flower.testbed import links
from fedlane.flower.testbed.processes import FlowerCluster
built = links.build_cell(2)
cell = built.cell
cluster = FlowerCluster(Path(sys.argv[1]), port=1, namespace=cell.base)
sleepers = [cluster.start("sleeper", ["sleep", "600"], cell.client(0))]
while not cell.processes():
    time.sleep(0.01)
print(cell.name, sleepers[0].process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_cell_of_a_killed_owner_is_removed_by_the_next_one(cell, tmp_path):
    """Processes die with their owner, and namespaces are removed with the next cell; a running owner keeps its own."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    name, sleeper = owner.stdout.readline().split()
    owner.stdout.close()
    stale = links.RadioCell(name, 2)
    try:
        assert [int(sleeper)] == stale.processes()
        assert name not in links.remove_stale_cells()
        assert Path(f"/run/netns/{stale.base}").exists()
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_for(lambda: not stale.processes())
    with links.temporary_cell(1) as other:
        assert not any(Path(f"/run/netns/{namespace}").exists() for namespace in stale.namespaces)
        assert other.name != name
    assert all(Path(f"/run/netns/{namespace}").exists() for namespace in cell.namespaces)


def test_closing_a_cell_kills_processes_that_ignore_sigterm():
    reason = links.unsupported_reason()
    if reason is not None:
        missing(f"real links cannot be built here: {reason}")
    built = links.build_cell(1)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        ["ip", "netns", "exec", built.cell.client(0), sys.executable, "-c", stubborn],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"on\n"
    process.stdout.close()
    built.close()
    assert process.wait(60) == -signal.SIGKILL
    assert not any(Path(f"/run/netns/{namespace}").exists() for namespace in built.cell.namespaces)
    built.close()


def test_invalid_clients_and_rates_are_rejected(cell):
    with pytest.raises(InputError, match="clients must be at least 1, got 0"):
        links.build_cell(0)
    with pytest.raises(InputError, match="clients must be at most 1000"):
        links.build_cell(2000)
    with pytest.raises(InputError, match="rate of client 1 in Mbit/s must be greater than 0"):
        cell.tune({1: 0.0})
    with pytest.raises(links.LinkError, match="tc failed"):
        links.RadioCell("fl-nowhere", 1).tune({0: 1.0})
    if os.geteuid() == 0:
        assert links.unsupported_reason() is None


def test_rates_are_log_uniform_and_follow_the_seed():
    table = rates.draw_rates(200, 50, 1.0, 20.0, 3)
    assert table.shape == (1, 200, 50)
    assert table.min() >= 1.0
    assert table.max() <= 20.0
    # 10,000 uniform exponents: the mean's standard error is log(20) / sqrt(12) / 100
    assert np.log(table).mean() == pytest.approx(np.log(20.0) / 2, abs=4 * np.log(20.0) / 12**0.5 / 100)
    np.testing.assert_array_equal(table, rates.draw_rates(200, 50, 1.0, 20.0, 3))
    assert not np.array_equal(table, rates.draw_rates(200, 50, 1.0, 20.0, 4))
    for wrong in ("5", "a:b", "0:3", "5:2", "1:2:3", "1:9999"):
        with pytest.raises(InputError, match="--rates must"):
            rates.parse_range(wrong)


def test_traces_are_read_and_replayed(tmp_path, monkeypatch):
    """In Mahimahi's format a line is 1500 bytes at a millisecond: 50 in the first ten seconds, then 500, then 1."""
    stamps = [*range(0, 10_000, 200), *range(10_000, 20_000, 20), 29_999]
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "link.xz").write_bytes(lzma.compress("".join(f"{s}\n" for s in stamps).encode()))
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    table = rates.replay_trace("link.xz", 3, 2, 7, seed=1)
    assert table.shape == (3, 3, 2)  # the trace is three steps long, and then repeats
    assert set(np.round(table.ravel(), 6)) == {0.06, 0.6, rates.MIN_MBPS}
    np.testing.assert_array_equal(rates.replay_trace("link.xz", 3, 2, 2, seed=1), table[:2])
    csv = tmp_path / "walk.csv"
    csv.write_text("trace,t_s,dl_kbps\na,0,1000\na,0.5,3000\na,1,4000\nb,0,8000\n")
    np.testing.assert_allclose(rates.read_trace(csv), [2.0, 4.0, 8.0])
    for text, message in (
        ("a,b\n1,2\n", "no column"),
        ("x_mbps,b\n-1,0\n", "must be finite"),
        ("word\n", "no column"),
        ("7\nword\n", "cannot read the trace"),
    ):
        csv.write_text(text)
        with pytest.raises(InputError, match=message):
            rates.read_trace(csv)
    with pytest.raises(InputError, match="does not exist"):
        rates.replay_trace("nothing", 1, 1, 1, 0)


@pytest.mark.slow  # it prepares a simulation
def test_rates_of_a_scenario_are_given_or_those_of_its_radio():
    given = Scenario.from_values({"network": {"clients": 2, "channels": 1, "rates_mbps": [[3.0], [4000.0]]}})
    np.testing.assert_array_equal(rates.scenario_rates(given, 0), [[[3.0], [rates.MAX_MBPS]]])
    wide = Scenario.load("quickstart").with_values({"network.bandwidth_up_hz": 1e6, "network.bandwidth_down_hz": 2e6})
    table = rates.scenario_rates(wide, 0)
    assert table.shape == (1, wide.network.clients, wide.network.channels)
    assert 0.05 < np.median(table) < 20.0
