"""The testbed command with real processes and links: an ordinary run folder, and nothing else is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlane import Run, simulate
from fedlane.cli.testbed import run_testbed
from fedlane.flower.testbed import links, processes, spec, testbed
from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.calibration import Calibration
from fedlane.flower.testbed.meter import measure_transfer
from fedlane.learning.datasets import load_dataset
from fedlane.scenario import Scenario
from fedlane.validate import InputError
from support.parts import missing
from support.terminal import fedlane
from support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("flower")
servers = pytest.mark.slow  # these start SuperLink and SuperNodes
FEDLANE = Path(sys.executable).parent / "fedlane"


@pytest.fixture(autouse=True, scope="module")
def _root():
    reason = links.unsupported_reason()
    if reason is not None:
        missing(f"real links cannot be built here: {reason}")


@pytest.fixture(autouse=True)
def _normal_priority(monkeypatch):
    """Nodes have the priority of everything else: on a busy machine nicer ones would starve."""
    monkeypatch.setattr(processes, "_NODE_NICE", 0)


def cells_of(process):
    """Return the names of the cells that a process has built and not yet removed."""
    return [path.name for path in links.LOCKS.glob("fl-*") if _read(path).strip() == str(process).encode()]


def namespaces_of(cell):
    return list(Path("/run/netns").glob(f"{cell}-*"))


@servers
def test_one_command_runs_a_federation_and_writes_a_run_folder(tmp_path):
    """3 clients, 2 lanes, 2 rounds of 300 kB, a trace of 2 to 8 Mbit/s: transfers take size / rate."""
    out, trace = tmp_path / "out", tmp_path / "trace.csv"
    trace.write_text("dl_mbps\n" + "\n".join(str(2.0 + 6.0 * (second // 10) / 11) for second in range(120)))
    options = (
        f"--clients 3 --lanes 2 --rounds 2 --trace {trace} --payload 300000 --deadline 60 --seed 4 --calibrate --json"
    )
    done = fedlane("testbed", *options.split(), "--out", out, cwd=tmp_path, code=0)
    (row,) = json.loads(done.stdout)["runs"]
    assert not namespaces_of(json.loads((out / "logs" / "lane" / "plan.json").read_text())["cell"])

    run = Run.load(out / "lane")
    assert run.summary["rounds"] == 2
    assert run.summary["flower"]["clients"] == ["client-0", "client-1", "client-2"]
    assert run.rounds.num_rows == 2
    assert run.assignments.num_rows == 4  # both lanes, every round
    assert all(run.assignments["punctual"].to_pylist())
    assert row["wall_s"] == pytest.approx(run.summary["flower"]["wall_s"])

    transfers = json.loads((out / "lane.transfers.json").read_text())
    assert {(t["round"], t["client"], t["lane"]) for t in transfers} == set(
        zip(*(run.assignments[column].to_pylist() for column in ("round", "client", "channel")), strict=True)
    )
    rates = np.array(json.loads((out / "rates.json").read_text()))
    payload = perceptron.size_bytes(300_000)
    for transfer in transfers:
        assert transfer["expected_s"] == pytest.approx(
            8e-6 * payload / rates[transfer["round"], transfer["client"], transfer["lane"]]
        )
        assert transfer["seconds"] > 0.85 * transfer["expected_s"]
    slowdown = [t["seconds"] / t["expected_s"] for t in transfers]
    assert np.median(slowdown) > 0.9
    assert min(slowdown) < 1.6  # a busy machine can only slow a transfer down

    scenario = Scenario.load(out / "simulation.toml")
    low, high = scenario.network.floor_s
    assert 0.0 <= low < high < 60.0
    assert (rates[0] != rates[1]).all()  # each round replays the next ten seconds
    np.testing.assert_allclose(scenario.network.rates_mbps, rates)
    simulated = simulate(scenario, policy="lane", seeds=[4], learning=False)
    np.testing.assert_allclose(  # the same partition as the nodes' introductions, so the same quotas
        simulated.clients["quota"].to_numpy(), run.clients["quota"].to_numpy(), atol=1e-6
    )
    assert row["predicted_s"] > 0
    assert np.isfinite(run.rounds["accuracy"].to_numpy()[-1])


@servers
def test_a_lane_fails_and_recovers(tmp_path):
    """For three rounds one lane is too slow: deadlines hold, the other lane works, and later both are used.

    On a busy machine clients may miss a deadline of 4 s on a working lane; then the test repeats with a longer one.
    """
    rounds, dead = 8, range(2, 5)
    for deadline_s in (4.0, 30.0):
        rates = np.full((rounds, 3, 2), 20.0)
        rates[dead.start : dead.stop, :, 1] = 8e-6 * 60_000 / (2.5 * deadline_s)
        small_spec = spec.TestbedSpec(3, 2, rounds, deadline_s, 60_000, 0, rates)
        with testbed.Testbed(small_spec, tmp_path / str(deadline_s)) as running:
            run = running.run("lane", "lane").run
        rows = run.assignments.to_pylist()
        if np.mean([row["punctual"] for row in rows if row["channel"] == 0 or row["round"] not in dead]) > 0.8:
            break
    lane = [row for row in rows if row["channel"] == 1]
    failed = [row for row in lane if row["round"] in dead]
    assert failed
    assert not any(row["punctual"] for row in failed)
    assert any(row["punctual"] for row in lane if row["round"] < dead.start), rows
    assert any(row["punctual"] for row in lane if row["round"] >= dead.stop), rows
    assert np.mean([row["punctual"] for row in rows if row["channel"] == 0]) > 0.8, rows
    assert max(run.rounds["delay_s"].to_pylist()) < deadline_s + 0.05


@servers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_testbed_removes_links_and_processes(tmp_path, number):
    out = tmp_path / "out"
    process = subprocess.Popen(
        [FEDLANE, "testbed", "--clients", "2", "--lanes", "1", "--rounds", "500", "--quiet", "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may start tests with SIGINT ignored
    )
    try:
        wait_for((out / "logs" / "superlink.log").exists)
        (cell,) = cells_of(process.pid)
        assert len(namespaces_of(cell)) == 3
        process.send_signal(number)
        errors = process.communicate(timeout=180)[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert process.returncode == 130, errors
    assert errors.startswith("fedlane: interrupted: links and processes were removed")
    assert "Traceback" not in errors
    assert not cells_of(process.pid)
    assert not namespaces_of(cell)
    holders = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(out).encode() in _read(p)]
    assert not holders


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": ["lnae"]}, "unknown policy 'lnae' .did you mean 'lane'"),
        ({"policy": ["genie"]}, "policy genie requires distributions, which a federation does not have"),
        ({"policy": ["lane", "lane"]}, "names the same policy twice"),
        ({"rates": "1"}, "--rates must be LOW:HIGH"),
        ({"rates": "1:2", "trace": "x"}, "cannot be combined"),
        ({"calibrate": True, "calibration": Path("x")}, "cannot be combined"),
        ({"calibration": Path("nowhere.json")}, "cannot read the calibration nowhere.json"),
        ({"clients": 0}, "--clients must be at least 1 and at most 16,000, got 0"),
        ({"payload": 7}, "--payload must be at least"),
        ({"deadline": 0.0}, "deadline must be greater than 0"),
        ({"out": Path(__file__).parent}, "is not empty"),
    ],
)
def test_invalid_options_are_rejected_before_anything_is_built(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run_testbed(**options)
    assert not cells_of(os.getpid())
    assert not list(tmp_path.iterdir())


def test_a_calibration_with_other_nodes_is_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Calibration((1.0, 5.0), 0.1, 0.1, 20, stock_nodes=True).write(tmp_path / "calibration.json")
    with pytest.raises(InputError, match="measured with a different kind of node"):
        run_testbed(calibration=tmp_path / "calibration.json")
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]


def test_the_meter_measures_a_transfer_among_polls():
    """1 MB of payload in 2 s, starting at 5 s, with a poll of 1 kB in every second."""
    at = np.arange(0.0, 12.0, 0.02)
    bulk = np.clip((at - 5.0) / 2.0, 0.0, 1.0) * 1e6 * links.WIRE_PER_PAYLOAD
    moved, seconds = measure_transfer(at, bulk + 1000.0 * np.floor(at), 1e6)
    assert moved == pytest.approx(1e6 * links.WIRE_PER_PAYLOAD + 11_000)
    assert seconds == pytest.approx(2.0, rel=0.02)
    assert measure_transfer(at, 0.5 * bulk, 1e6) is None


def test_the_perceptron_learns_with_the_right_gradient():
    rng = np.random.default_rng(0)
    weights = perceptron.initial(20_000, 1)
    assert sum(array.nbytes for array in weights.values()) == perceptron.size_bytes(20_000)
    assert abs(perceptron.size_bytes(1_000_000) - 1_000_000) < 1600
    with pytest.raises(InputError, match="--payload must be at least"):
        perceptron.initial(100, 0)
    inputs = rng.random((40, 784)).astype(np.float32)
    labels = rng.integers(10, size=40)
    step = {"iterations": 1, "batch_size": 40, "learning_rate": 1.0, "rng": np.random.default_rng(0)}
    moved = perceptron.train(weights, inputs, labels, **step)
    for key in weights:  # finite differences of the mean loss along a random direction
        direction = rng.standard_normal(weights[key].shape)
        ends = [
            perceptron.evaluate(
                {k: v.astype(np.float64) + (s * 1e-5 * direction if k == key else 0.0) for k, v in weights.items()},
                inputs.astype(np.float64),
                labels,
            )[1]
            for s in (1.0, -1.0)
        ]
        slope = (ends[0] - ends[1]) / 2e-5
        assert float(((weights[key] - moved[key]) * direction).sum()) == pytest.approx(slope, rel=1e-2, abs=1e-4)
    samples = load_dataset("fashion-mnist-mini").train
    images = perceptron.inputs_of(samples.images)
    trained = perceptron.train(
        weights, images, samples.labels, iterations=200, batch_size=64, learning_rate=0.1, rng=rng
    )
    assert perceptron.evaluate(trained, images, samples.labels)[0] > 0.65
