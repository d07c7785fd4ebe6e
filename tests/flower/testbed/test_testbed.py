"""The testbed command with real processes and links: an ordinary run folder, and nothing else is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedlane import Run, simulate
from fedlane.cli.testbed import run_testbed
from fedlane.flower.testbed import links, processes, rates, testbed
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
ROUNDS, FAILED, DEADLINE_S, PAYLOAD = 7, range(3, 5), 15.0, 300_000


@pytest.fixture(autouse=True, scope="module")
def _root():
    reason = links.unsupported_reason()
    if reason is not None:
        missing(f"real links cannot be built here: {reason}")


def cells_of(process):
    """Return the names of the cells that a process has built and not yet removed."""
    return [path.name for path in links.LOCKS.glob("fl-*") if _read(path).strip() == str(process).encode()]


def namespaces_of(cell):
    return list(Path("/run/netns").glob(f"{cell}-*"))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Run the command with 3 clients, 2 lanes, a model of 300 kB and a trace of 2 to 8 Mbit/s.

    In two rounds one lane is so slow that every transfer misses its deadline.

    Returns:
        The output folder, the run, the rates and what the command printed about the run.
    """
    folder = tmp_path_factory.mktemp("testbed")
    out, trace = folder / "out", folder / "trace.csv"
    trace.write_text("dl_mbps\n" + "\n".join(str(2.0 + 6.0 * (second // 10) / 11) for second in range(120)))
    replay = rates.replay_trace

    def replay_with_failure(*arguments):
        table = replay(*arguments)
        table[FAILED.start : FAILED.stop, :, 1] = rates.MIN_MBPS
        return table

    assert 8e-6 * PAYLOAD / rates.MIN_MBPS > 2 * DEADLINE_S
    options = f"--clients 3 --lanes 2 --rounds {ROUNDS} --trace {trace} --payload {PAYLOAD} --deadline {DEADLINE_S}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "replay_trace", replay_with_failure)
        patch.setattr(testbed, "CALIBRATION_ROUNDS", FAILED.start)
        patch.setattr(processes, "_NODE_NICE", 0)
        words = [*options.split(), "--seed", "4", "--calibrate", "--json"]
        done = fedlane("testbed", *words, "--out", out, cwd=folder, code=0)
    (row,) = json.loads(done.stdout)["runs"]
    table = np.array(json.loads((out / "rates.json").read_text()))
    return SimpleNamespace(out=out, run=Run.load(out / "lane"), rates=table, row=row)


@servers
def test_one_command_runs_a_federation_and_writes_a_run_folder(played):
    run = played.run
    assert not namespaces_of(json.loads((played.out / "logs" / "lane" / "plan.json").read_text())["cell"])
    assert run.summary["rounds"] == run.rounds.num_rows == ROUNDS
    assert run.summary["flower"]["clients"] == ["client-0", "client-1", "client-2"]
    assert np.isfinite(run.rounds["accuracy"].to_numpy()[-1])
    before = [row for row in run.assignments.to_pylist() if row["round"] < FAILED.start]
    assert len(before) == 2 * FAILED.start  # both lanes, every round
    assert played.row["wall_s"] == pytest.approx(run.summary["flower"]["wall_s"])
    assert played.row["predicted_s"] > 0


@servers
def test_no_transfer_is_faster_than_its_link(played):
    """They take at least size / rate; `benchmarks/testbed.py` measures how much longer."""
    transfers = json.loads((played.out / "lane.transfers.json").read_text())
    measured = {(t["round"], t["client"], t["lane"]): t for t in transfers}
    assigned = played.run.assignments.to_pylist()
    punctual = {(row["round"], row["client"], row["channel"]) for row in assigned if row["punctual"]}
    assert punctual <= set(measured) <= {(row["round"], row["client"], row["channel"]) for row in assigned}
    for pair, transfer in measured.items():
        size = perceptron.size_bytes(PAYLOAD)
        assert transfer["expected_s"] == pytest.approx(8e-6 * size / played.rates[pair])
        assert pair not in punctual or transfer["seconds"] > 0.85 * transfer["expected_s"]
    assert np.median([measured[pair]["seconds"] / measured[pair]["expected_s"] for pair in punctual]) > 0.9


@servers
def test_the_simulation_of_a_testbed_has_its_rates_and_quotas(played):
    scenario = Scenario.load(played.out / "simulation.toml")
    low, high = scenario.network.floor_s
    assert 0.0 <= low < high
    assert (played.rates[0] != played.rates[1]).all()  # each round replays the next ten seconds
    np.testing.assert_allclose(scenario.network.rates_mbps, played.rates)
    simulated = simulate(scenario, policy="lane", seeds=[4], learning=False)
    np.testing.assert_allclose(  # the same partition as the nodes' introductions, so the same quotas
        simulated.clients["quota"].to_numpy(), played.run.clients["quota"].to_numpy(), atol=1e-6
    )


@servers
def test_a_lane_fails_and_recovers(played):
    """Deadlines hold, the other lane works meanwhile, and later both are used."""
    rows = played.run.assignments.to_pylist()

    def punctual(lane, rounds):
        return [row["punctual"] for row in rows if row["channel"] == lane and row["round"] in rounds]

    assert punctual(1, FAILED)
    assert not any(punctual(1, FAILED)), rows
    for lane, rounds in ((0, FAILED), (1, range(FAILED.start)), (1, range(FAILED.stop, ROUNDS))):
        assert any(punctual(lane, rounds)), rows
    assert max(played.run.rounds["delay_s"].to_pylist()) == DEADLINE_S


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
