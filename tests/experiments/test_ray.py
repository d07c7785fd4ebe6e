"""Sweeps on a real local Ray cluster of two nodes: the same bits, lost workers and nodes, and clear refusals."""

import os
import socket
import sys
from importlib.util import find_spec

import pytest

from fedlane import Scenario
from fedlane.experiments.engine import ray_runner
from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.cells import Cell
from fedlane.experiments.engine.computing import compute
from fedlane.experiments.engine.local_runners import InProcessRunner
from fedlane.validate import InputError
from support.counted_policy import COUNTED
from support.forked import Forked
from support.parts import missing
from support.terminal import fedlane

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]
QUICK = Scenario.load("quickstart").with_values({"rounds": 6})
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class TwoNodes:
    """A cluster, its removable second node, and the files that its workers write."""

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.log = folder / "log"
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        os.environ.update(COUNTED_LOG=str(self.log), PYTHONPATH=paths)
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        self.second = self.cluster.add_node(**NODE)
        self.cluster.wait_for_nodes()

    def starts(self):
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture(scope="module", autouse=True)
def _ray():
    if find_spec("ray") is None:
        missing("ray is not installed (extra ray)")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    before = dict(os.environ)
    running = TwoNodes(tmp_path_factory.mktemp("ray"))
    yield running
    running.cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


def runner(nodes):
    return ray_runner.RayRunner(nodes.cluster.address)


def batches_of(*cells):
    return [batch for cell in cells for batch in cell.batches()]


def counted(tag, *, rounds=6):
    return Cell(QUICK.with_values({"rounds": rounds}), f"{COUNTED}:tag={tag}", (0, 1), learning=False)


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


@pytest.mark.long
def test_another_version_is_refused_in_one_line(nodes, monkeypatch):
    monkeypatch.setattr(ray_runner, "_version", lambda: "9.9.9")
    with pytest.raises(
        InputError, match=r"Ray node \S+ has FedLane [\d.]+, this machine has 9\.9\.9: install the same"
    ):
        compute(batches_of(counted(1)), BatchStore(), runner(nodes))


@pytest.mark.long
def test_learning_on_a_gpu_is_refused_without_one(nodes):
    with pytest.raises(InputError, match="the Ray cluster has no GPU"):
        compute(batches_of(Cell(QUICK, "lane", (0,), True, "cuda")), BatchStore(), runner(nodes))


@pytest.mark.long
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


@pytest.mark.long
def test_a_worker_without_fedlane_says_so(tmp_path):
    from ray import cloudpickle

    sent = cloudpickle.dumps(ray_runner._task())

    def work():
        for name in [name for name in sys.modules if name.partition(".")[0] == "fedlane"]:
            sys.modules[name] = None
        print(cloudpickle.loads(sent)("{}", "0.1.0", 1, ".")[0])

    with Forked(work, cwd=tmp_path) as worker:
        result = worker.wait()
    assert "has no FedLane: install the same version on every node (0.1.0)" in result.stdout, result.stderr


@pytest.mark.long
def test_an_address_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_runner, "TIMEOUT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it listens, but does not answer
        for address, line in (
            (f"127.0.0.1:{free}", "does not answer: "),
            ("127.0.0.1:x", "must be HOST:PORT"),
            (f"127.0.0.1:{silent.getsockname()[1]}", "does not answer as a Ray cluster within 2 s"),
        ):
            options = ("--grid", "rounds=2,3", "--no-learning", "--out", "s", "--ray-address", address)
            (printed,) = fedlane("sweep", "quickstart", *options, cwd=tmp_path, code=2).stderr.splitlines()
            assert line in printed
