"""Sweeps on a real local Ray cluster of two nodes: the same bits, lost workers and nodes, and clear refusals."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest

from fedlane import Scenario
from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.computing import compute
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.validate import InputError
from support.terminal import fedlane

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed (extra ray)", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]
QUICK = Scenario.load("quickstart").with_values({"rounds": 6})
COUNTED = "support.counted_policy:Counted"
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
from fedlane.experiments.engine import ray_runner
from fedlane.cli import main
ray_runner.TIMEOUT_S = 4.0
address = f"127.0.0.1:{server.getsockname()[1]}"
sys.argv = ["fedlane", "sweep", "quickstart", "--grid", "rounds=2,3", "--no-learning", "--ray-address", address]
main()
"""
"""A program that asks for a cluster at an address where something listens, but does not answer."""
LOADED = """
import sys
sys.modules["fedlane"] = None
from ray import cloudpickle
print(cloudpickle.loads(bytes.fromhex(sys.argv[1]))("{}", "0.1.0", 1, ".")[0])
"""


class TwoNodes:
    """A cluster, its removable second node, and the files that its workers write."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.log, self.killed = folder / "log", folder / "killed"
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        os.environ.update(COUNTED_LOG=str(self.log), KILL_ONCE=str(self.killed), PYTHONPATH=paths)
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        self.second = self.cluster.add_node(**NODE)
        self.cluster.wait_for_nodes()

    def starts(self):
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    before = dict(os.environ)
    running = TwoNodes(tmp_path_factory.mktemp("ray"))
    yield running
    running.cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


def runner(nodes):
    from fedlane.experiments.engine.ray_runner import RayRunner

    return RayRunner(nodes.cluster.address)


def batches_of(*cells):
    return [batch for cell in cells for batch in cell.batches()]


def counted(tag, *, kill=False, rounds=6):
    policy = f"{COUNTED}:tag={tag},kill={str(kill).lower()}"
    return Cell(QUICK.with_values({"rounds": rounds}), policy, (0, 1), learning=False)


def test_schedules_and_learning_have_the_same_bits_on_ray(nodes, tmp_path):
    batches = batches_of(
        Cell(QUICK, "lane", (0, 1, 2), learning=False),
        Cell(QUICK, "random", (0, 1, 2), learning=False),
        Cell(QUICK, "lane", tuple(range(10)), learning=True),
    )
    here, there = BatchStore(tmp_path / "here"), BatchStore(tmp_path / "there")
    compute(batches, here, InProcessRunner())
    report = compute(batches, there, runner(nodes))
    assert (report.computed, report.failures) == (4, {})
    for batch in batches:
        assert (here.folder / f"{batch.key}.parquet").read_bytes() == (
            there.folder / f"{batch.key}.parquet"
        ).read_bytes()


def test_a_killed_worker_s_batch_is_started_again(nodes, tmp_path):
    batches = batches_of(*(counted(tag, kill=tag == 102) for tag in range(100, 106)))
    store = BatchStore(tmp_path)
    before = len(nodes.starts())
    report = compute(batches, store, runner(nodes))
    assert nodes.killed.exists()
    assert (report.failures, store.keys()) == ({}, {batch.key for batch in batches})
    starts = nodes.starts()[before:]
    assert {tag: starts.count(str(tag)) for tag in range(100, 106)} == {**dict.fromkeys(range(100, 106), 1), 102: 2}
    compute(batches, store, runner(nodes))
    assert len(nodes.starts()) == before + 7


def test_another_version_is_refused_in_one_line(nodes, monkeypatch):
    from fedlane.experiments.engine import ray_runner

    monkeypatch.setattr(ray_runner, "_version", lambda: "9.9.9")
    with pytest.raises(
        InputError, match=r"Ray node \S+ has FedLane [\d.]+, this machine has 9\.9\.9: install the same"
    ):
        compute(batches_of(counted(1)), BatchStore(), runner(nodes))


def test_learning_on_a_gpu_is_refused_without_one(nodes):
    with pytest.raises(InputError, match="the Ray cluster has no GPU"):
        compute(batches_of(Cell(QUICK, "lane", (0,), True, "cuda")), BatchStore(), runner(nodes))


def test_a_node_is_lost_and_nothing_stored_is_computed_twice(nodes, tmp_path):
    batches = batches_of(*(counted(tag, rounds=1500) for tag in range(200, 216)))
    store = BatchStore(tmp_path)
    before, stored = len(nodes.starts()), []

    def remove(finished):
        stored.append(finished.key)
        if len(stored) == 3:
            nodes.cluster.remove_node(nodes.second)

    report = compute(batches, store, runner(nodes), remove)
    assert (report.failures, store.keys()) == ({}, {batch.key for batch in batches})
    starts = nodes.starts()[before:]
    assert len({*starts}) == 16
    assert 16 <= len(starts) <= 16 + 4  # what ran on the lost node ran again
    for tag, batch in enumerate(batches, 200):
        if batch.key in stored[:3]:
            assert starts.count(str(tag)) == 1


def test_a_worker_without_fedlane_says_so():
    from ray import cloudpickle

    from fedlane.experiments.engine.ray_runner import _task

    command = [sys.executable, "-c", LOADED, cloudpickle.dumps(_task()).hex()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "has no FedLane: install the same version on every node (0.1.0)" in done.stdout, done.stderr


def test_an_address_that_does_not_answer_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    options = ("sweep", "quickstart", "--grid", "rounds=2,3", "--no-learning", "--out", "s", "--ray-address")
    for address, line in ((f"127.0.0.1:{free}", "does not answer: "), ("127.0.0.1:x", "must be HOST:PORT")):
        result = fedlane(*options, address, cwd=tmp_path, code=2)
        (printed,) = result.stderr.splitlines()
        assert line in printed
    done = subprocess.run([sys.executable, "-c", SERVER], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    (printed,) = done.stderr.splitlines()
    assert "does not answer as a Ray cluster within 4 s" in printed
    assert done.returncode == 2


def test_the_extra_is_named_where_ray_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = fedlane("sweep", "quickstart", "--grid", "rounds=2,3", "--no-learning", "--ray", cwd=tmp_path, code=2)
    assert "pip install fedlane[ray]" in result.stderr
