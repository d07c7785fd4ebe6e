"""A real federation on one machine: namespaces, shaped links, TLS, node keys, Flower's processes, and their end.

    with Testbed(TestbedSpec(clients=6, lanes=3, ...), folder) as testbed:
        floor = testbed.calibrate()
        testbed.play("lane")

The folder gets a run folder for each policy, `simulation.toml` (the scenario that predicts the run), `rates.json`,
`calibration.json`, `POLICY.transfers.json` (what the links really carried) and the processes' logs.
"""

import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedlane.files import file_name
from fedlane.flower.testbed import links
from fedlane.flower.testbed.app import client_app, perceptron
from fedlane.flower.testbed.app.client_app import BATCH_SIZE, DATASET, ITERATIONS, LEARNING_RATE, PARTITION
from fedlane.flower.testbed.app.folder import write_app
from fedlane.flower.testbed.calibration import Calibration
from fedlane.flower.testbed.meter import Meter, Transfer
from fedlane.flower.testbed.processes import FlowerCluster, ProcessError
from fedlane.flower.testbed.spec import LOG, OUTCOME, TestbedRun
from fedlane.records import FloatArray
from fedlane.scenario import Scenario
from fedlane.scheduling import make_policy
from fedlane.simulation import Run
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError, at_least, positive

PORT, NODE_PORT = 9092, 9094
CALIBRATION_ROUNDS = 12
_LOOK_S = 0.2
_ASK_S = 30.0
"""So often Flower itself is asked whether a run goes on: the question costs a second of a processor."""


@dataclass(frozen=True)
class TestbedSpec:
    """What is built: the same for all policies."""

    clients: int
    lanes: int
    rounds: int
    deadline_s: float
    payload_bytes: int
    seed: int
    rates_mbps: FloatArray
    """(K, U, N): round t has the rates of row t mod K."""
    stock_nodes: bool = False
    """Flower's own SuperNodes, with all their waits, instead of ours."""

    def check(self, calibration: Calibration | None = None) -> None:
        for field in ("clients", "lanes", "rounds"):
            at_least(field, getattr(self, field), 1)
        at_least("seed", self.seed, 0)
        positive("deadline", self.deadline_s)
        perceptron.hidden_units(self.payload_bytes)
        if self.rates_mbps.shape[1:] != (self.clients, self.lanes):
            raise InputError(
                f"rates are of {self.rates_mbps.shape[1]} clients on {self.rates_mbps.shape[2]} lanes, "
                f"not of {self.clients} on {self.lanes}"
            )
        if calibration is not None and calibration.stock_nodes != self.stock_nodes:
            raise InputError("the calibration was measured with other nodes (--stock-nodes)")


@dataclass(frozen=True)
class Played:
    """One policy's run on the testbed."""

    policy: str
    folder: Path
    run: Run
    transfers: list[Transfer]

    @property
    def wall_s(self) -> float:
        """All rounds, from choosing clients to having written the round's files."""
        return float(self.run.summary["flower"]["wall_s"])

    @property
    def network_ratio(self) -> float | None:
        """Median of measured over expected time of the transfers, or None where there were none."""
        ratios = [one.seconds / one.expected_s for one in self.transfers]
        return float(np.median(ratios)) if ratios else None


class Testbed:
    """Built on entering, gone on leaving: after an error, Ctrl-C or SIGTERM too; after SIGKILL, at the next start."""

    def __init__(
        self,
        setting: TestbedSpec,
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
        calibration: Calibration | None = None,
    ) -> None:
        setting.check(calibration)
        self.setting, self.folder, self.say = setting, folder, say
        self.calibration = calibration
        self._stack, self._signals = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        with _undisturbed():
            self._stack.close()
        self._signals.close()  # last: `_undisturbed` puts back the handlers that it found

    def _forget(self) -> None:
        """Keep the logs alone: keys, Flower's database and its copies of the app are of no further use."""
        for path in (self.logs / "keys", self.logs / "flwr", self.logs / "app"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.logs.glob("superlink.db*"):
            path.unlink(missing_ok=True)

    def _build(self) -> None:
        setting = self.setting
        self.say("building links")
        self._signals.enter_context(_terminated_as_interrupted())
        self.cell = self._stack.enter_context(links.build(setting.clients))
        self.cell.tune(dict.fromkeys(range(setting.clients), links.UNSHAPED_MBPS))
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True)
        (self.folder / "rates.json").write_text(json.dumps(setting.rates_mbps.tolist()) + "\n")
        self._stack.callback(self._forget)
        self.federation = self._stack.enter_context(
            FlowerCluster(self.logs, port=PORT, address=links.SERVER_ADDRESS, namespace=self.cell.base)
        )
        self.say("starting SuperLink")
        self._superlink = self.federation.start_superlink()
        keys = [self.federation.new_node(f"client-{i}") for i in range(setting.clients)]
        self.say(f"registering {setting.clients} nodes")
        self.federation.register(*keys)
        self.say(f"starting {setting.clients} SuperNodes")
        self.federation.wait_for_nodes(
            [
                self.federation.start_supernode(
                    f"client-{i}",
                    key,
                    port=NODE_PORT,
                    namespace=self.cell.client(i),
                    config={"partition-id": i},
                    preload=[client_app.__name__],
                    stock=setting.stock_nodes,
                )
                for i, key in enumerate(keys)
            ]
        )
        self.app = write_app(self.logs / "app")
        self._meter = self._stack.enter_context(Meter(self.cell, self._superlink.process.pid))
        self._write_scenario()

    def calibrate(self, progress: Callable[[int], None] = lambda round: None) -> Calibration:
        """Measure Flower's floor in a run of its own: the same app, model and links, clients in turn.

        On links that take no time all clients' processes would start at once, and wait for the machine instead.
        """
        setting = self.setting
        plan = self._plan("round-robin", "calibration", min(CALIBRATION_ROUNDS, max(3, setting.rounds)))
        run = self._follow(plan, progress)
        pairs = zip(*(run.assignments[name].to_pylist() for name in ("round", "client", "channel")), strict=True)
        moving_s = [2 * 8e-6 * plan.payload_bytes / plan.rate_mbps(*pair) for pair in pairs]
        self.calibration = Calibration.of(run, np.array(moving_s), setting.stock_nodes)
        self.calibration.write(self.folder / "calibration.json")
        self._write_scenario()
        return self.calibration

    def play(self, policy: str, progress: Callable[[int], None] = lambda round: None) -> Played:
        """A whole run under one policy, on the setting's links."""
        make_policy(policy, {})
        plan = self._plan(policy, file_name(policy), self.setting.rounds)
        run = self._follow(plan, progress)
        transfers = self._meter.transfers(plan)
        name = f"{Path(plan.run_folder).name}.transfers.json"
        (self.folder / name).write_text(json.dumps([asdict(one) for one in transfers], indent=1) + "\n")
        return Played(policy, Path(plan.run_folder), run, transfers)

    def scenario(self) -> Scenario:
        """The scenario that predicts the testbed's runs; without a calibration, of links alone."""
        setting, known = self.setting, self.calibration
        rates = setting.rates_mbps
        return Scenario.from_values(
            {
                "name": "testbed",
                "rounds": setting.rounds,
                "network": {
                    "clients": setting.clients,
                    "channels": setting.lanes,
                    "deadline_s": setting.deadline_s,
                    "payload_bits": 8.0 * perceptron.size_bytes(setting.payload_bytes),
                    "rates_mbps": rates[0] if len(rates) == 1 else rates,
                    "floor_s": known.floor_s if known else 0.0,
                },
                "compute": {"seconds": max(known.compute_s, 1e-6)} if known else {},
                "data": {
                    "dataset": DATASET,
                    "partition": PARTITION.kind,
                    "noniid_degree": PARTITION.degree,
                    "imbalance": PARTITION.imbalance,
                },
                "learning": {
                    "batch_size": BATCH_SIZE,
                    "local_iterations": ITERATIONS,
                    "learning_rate": LEARNING_RATE,
                },
                "privacy": {"mechanism": "none"},
            }
        )

    def _write_scenario(self) -> None:
        (self.folder / "simulation.toml").write_text(self.scenario().to_toml())

    def _plan(self, policy: str, name: str, rounds: int) -> TestbedRun:
        setting, known = self.setting, self.calibration
        work = self.logs / name
        work.mkdir()
        return TestbedRun(
            cell=self.cell.name,
            clients=setting.clients,
            lanes=setting.lanes,
            policy=policy,
            rounds=rounds,
            deadline_s=setting.deadline_s,
            seed=setting.seed,
            payload_bytes=perceptron.size_bytes(setting.payload_bytes),
            rates_mbps=tuple(tuple(tuple(row) for row in table) for table in setting.rates_mbps.tolist()),
            scenario=str((self.folder / "simulation.toml").resolve()),
            run_folder=str(RunFolder.create((self.folder / name).resolve()).path),
            work_folder=str(work.resolve()),
            floor_s=None if known is None else sum(known.floor_s) / 2.0,
        )

    def _follow(self, plan: TestbedRun, progress: Callable[[int], None]) -> Run:
        """Submit a plan and wait for its end; what went wrong in it is one line."""
        work = Path(plan.work_folder)
        plan.write(work / "plan.json")
        config = {"plan": str(work / "plan.json"), "clients": plan.clients, "seed": plan.seed}
        number = self.federation.submit(self.app, config)
        asked, played = time.monotonic(), -1
        while not (work / OUTCOME).exists():
            if self._superlink.process.poll() is not None:
                raise ProcessError(f"SuperLink ended with {self._superlink.process.returncode}; see {self.logs}")
            time.sleep(_LOOK_S)
            if (now := _rounds_played(plan.run_folder)) != played:
                progress(now)
                asked, played = time.monotonic(), now
            if time.monotonic() - asked > _ASK_S + plan.deadline_s:
                asked = time.monotonic()
                status = self.federation.status(number)
                if status.startswith("finished") and not (work / OUTCOME).exists():
                    raise ProcessError(f"the app ended without a word ({status}); see {self._superlink.log}")
        outcome: dict[str, Any] = json.loads((work / OUTCOME).read_text())
        if not outcome["ok"]:
            raise ProcessError(f"policy {plan.policy}: {outcome['error']}; see {work / LOG}")
        progress(plan.rounds)
        return Run.load(plan.run_folder)


def _rounds_played(run_folder: str) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads((Path(run_folder) / "status.json").read_text())["round"])
    return 0


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM takes the way of Ctrl-C, so that it tears down too."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing interrupts a tear-down: a second Ctrl-C waits for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
