"""A real federation on one machine: namespaces, shaped links, TLS, node keys and Flower's processes.

    with Testbed(TestbedSpec(clients=6, lanes=3, ...), folder) as testbed:
        testbed.calibrate()
        testbed.run("lane", "lane")

The folder receives one run folder per policy, `simulation.toml` (the scenario that predicts the runs), `rates.json`,
`calibration.json`, `POLICY.transfers.json` (the traffic measured on the links) and the processes' logs.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedlane.flower.testbed import links
from fedlane.flower.testbed.app import client_app, perceptron
from fedlane.flower.testbed.app.folder import write_app
from fedlane.flower.testbed.calibration import Calibration
from fedlane.flower.testbed.interrupts import interrupts_ignored, sigterm_as_interrupt
from fedlane.flower.testbed.meter import LinkMeter, Transfer
from fedlane.flower.testbed.prediction import prediction_scenario
from fedlane.flower.testbed.processes import FlowerCluster, ProcessError
from fedlane.flower.testbed.spec import LOG_FILE, OUTCOME_FILE, TestbedRun, TestbedSpec
from fedlane.scheduling import make_policy
from fedlane.simulation import Run
from fedlane.simulation.results import RunFolder

PORT, NODE_PORT = 9092, 9094
CALIBRATION_ROUNDS = 12
_POLL_S = 0.2
_STATUS_S = 30.0
"""Time without progress after which Flower is asked for the run's status, which costs a second of CPU time."""


@dataclass(frozen=True)
class TestbedResult:
    """The result of one policy's run on the testbed."""

    policy: str
    folder: Path
    run: Run
    transfers: list[Transfer]

    @property
    def wall_s(self) -> float:
        """Wall-clock time of all rounds, from selecting the clients to writing the round's files."""
        return float(self.run.summary["flower"]["wall_s"])

    @property
    def network_ratio(self) -> float | None:
        """Median ratio of measured to expected transfer time; None without transfers."""
        ratios = [transfer.seconds / transfer.expected_s for transfer in self.transfers]
        return float(np.median(ratios)) if ratios else None


class Testbed:
    """A context that builds a testbed on entry and removes it on exit.

    It is also removed after an error, Ctrl-C or SIGTERM; after SIGKILL, the next testbed removes its remains.
    """

    def __init__(
        self,
        spec: TestbedSpec,
        folder: Path,
        report: Callable[[str], None] = lambda text: None,
        calibration: Calibration | None = None,
    ) -> None:
        """Check the specification; `report` is called with a line of text at each step."""
        spec.check(calibration)
        self.spec, self.folder, self.report = spec, folder, report
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
        """Stop all processes and remove the links."""
        with interrupts_ignored():
            self._stack.close()
        self._signals.close()  # last: `interrupts_ignored` restores the handlers that it found

    def _remove_files(self) -> None:
        """Delete keys, Flower's database and its copies of the app; only the logs stay."""
        for path in (self.logs / "keys", self.logs / "flwr", self.logs / "app"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.logs.glob("superlink.db*"):
            path.unlink(missing_ok=True)

    def _build(self) -> None:
        clients = self.spec.clients
        self.report("building links")
        self._signals.enter_context(sigterm_as_interrupt())
        self.cell = self._stack.enter_context(links.temporary_cell(clients))
        self.cell.tune(dict.fromkeys(range(clients), links.UNSHAPED_MBPS))
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True)
        (self.folder / "rates.json").write_text(json.dumps(self.spec.rates_mbps.tolist()) + "\n")
        self._stack.callback(self._remove_files)
        self.cluster = self._stack.enter_context(
            FlowerCluster(self.logs, port=PORT, address=links.SERVER_ADDRESS, namespace=self.cell.base)
        )
        self.report("starting SuperLink")
        self._superlink = self.cluster.start_superlink()
        keys = [self.cluster.new_node(f"client-{i}") for i in range(clients)]
        self.report(f"registering {clients} nodes")
        self.cluster.register(*keys)
        self.report(f"starting {clients} SuperNodes")
        self.cluster.wait_for_nodes(
            [
                self.cluster.start_supernode(
                    f"client-{i}",
                    key,
                    port=NODE_PORT,
                    namespace=self.cell.client(i),
                    config={"partition-id": i},
                    preload=[client_app.__name__],
                    stock=self.spec.stock_nodes,
                )
                for i, key in enumerate(keys)
            ]
        )
        self.app = write_app(self.logs / "app")
        self._meter = self._stack.enter_context(LinkMeter(self.cell, self._superlink.process.pid))
        self._write_scenario()

    def calibrate(self, progress: Callable[[int], None] = lambda round: None) -> Calibration:
        """Measure Flower's share of a delay in a separate run with the same app, model and links.

        The policy is round-robin, over the shaped links: on links without delay, all clients' processes would start
        at once and wait for the CPU instead.
        """
        run = self._new_run("round-robin", "calibration", min(CALIBRATION_ROUNDS, max(3, self.spec.rounds)))
        result = self._execute(run, progress)
        pairs = zip(*(result.assignments[name].to_pylist() for name in ("round", "client", "channel")), strict=True)
        links_s = [2 * 8e-6 * run.payload_bytes / run.rate_mbps(*pair) for pair in pairs]
        self.calibration = Calibration.from_run(result, np.array(links_s), self.spec.stock_nodes)
        self.calibration.write(self.folder / "calibration.json")
        self._write_scenario()
        return self.calibration

    def run(self, policy: str, name: str, progress: Callable[[int], None] = lambda round: None) -> TestbedResult:
        """Run all rounds under one policy and save them in the folder `name`.

        `progress` is called with the number of rounds done.
        """
        make_policy(policy, {})
        run = self._new_run(policy, name, self.spec.rounds)
        result = self._execute(run, progress)
        transfers = self._meter.transfers(run)
        rows = [asdict(transfer) for transfer in transfers]
        (self.folder / f"{name}.transfers.json").write_text(json.dumps(rows, indent=1) + "\n")
        return TestbedResult(policy, Path(run.run_folder), result, transfers)

    def _write_scenario(self) -> None:
        scenario = prediction_scenario(self.spec, self.calibration)
        (self.folder / "simulation.toml").write_text(scenario.to_toml())

    def _new_run(self, policy: str, name: str, rounds: int) -> TestbedRun:
        spec, calibration = self.spec, self.calibration
        work = self.logs / name
        work.mkdir()
        return TestbedRun(
            cell=self.cell.name,
            clients=spec.clients,
            lanes=spec.lanes,
            policy=policy,
            rounds=rounds,
            deadline_s=spec.deadline_s,
            seed=spec.seed,
            payload_bytes=perceptron.size_bytes(spec.payload_bytes),
            rates_mbps=tuple(tuple(tuple(row) for row in table) for table in spec.rates_mbps.tolist()),
            scenario=str((self.folder / "simulation.toml").resolve()),
            run_folder=str(RunFolder.create((self.folder / name).resolve()).path),
            work_folder=str(work.resolve()),
            floor_s=None if calibration is None else sum(calibration.floor_s) / 2.0,
        )

    def _execute(self, run: TestbedRun, progress: Callable[[int], None]) -> Run:
        """Submit a run, wait for its end and load its results; raise `ProcessError` if it failed."""
        work = Path(run.work_folder)
        run.write(work / "plan.json")
        config = {"plan": str(work / "plan.json"), "clients": run.clients, "seed": run.seed}
        run_id = self.cluster.submit(self.app, config)
        last_change, rounds = time.monotonic(), -1
        while not (work / OUTCOME_FILE).exists():
            if self._superlink.process.poll() is not None:
                raise ProcessError(f"SuperLink exited with {self._superlink.process.returncode}; see {self.logs}")
            time.sleep(_POLL_S)
            if (now := _rounds_done(run.run_folder)) != rounds:
                progress(now)
                last_change, rounds = time.monotonic(), now
            if time.monotonic() - last_change > _STATUS_S + run.deadline_s:
                last_change = time.monotonic()
                status = self.cluster.status(run_id)
                if status.startswith("finished") and not (work / OUTCOME_FILE).exists():
                    raise ProcessError(f"the app ended without an outcome ({status}); see {self._superlink.log}")
        outcome: dict[str, Any] = json.loads((work / OUTCOME_FILE).read_text())
        if not outcome["ok"]:
            raise ProcessError(f"policy {run.policy}: {outcome['error']}; see {work / LOG_FILE}")
        progress(run.rounds)
        return Run.load(run.run_folder)


def _rounds_done(run_folder: str) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads((Path(run_folder) / "status.json").read_text())["round"])
    return 0
