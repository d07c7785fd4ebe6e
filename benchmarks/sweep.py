"""The engine under `fedlane sweep`: two workers against one, and its overhead per tiny cell.

python benchmarks/sweep.py               # on two idle cores, about three minutes
python benchmarks/sweep.py workers       # only the first part
python benchmarks/sweep.py overhead      # only the second part
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from fedlane import Scenario
from fedlane.experiments.engine.batch_store import BatchStore
from fedlane.experiments.engine.computing import compute
from fedlane.experiments.engine.local_runners import InProcessRunner, ProcessRunner
from fedlane.experiments.engine.work_batches import WorkBatch
from fedlane.experiments.sweep import play_sweep
from fedlane.experiments.sweep_plan import SweepPlan
from fedlane.simulation.simulation import Simulation

TINY_CELLS, BLOCK = 1000, 100


class Spent:
    """Time spent inside of ``with`` blocks: by the clock, and on the processor."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> None:
        self.wall_s -= time.perf_counter()
        self.cpu_s -= time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter()
        self.cpu_s += time.process_time()


def plan(cells: int, rounds: int, seeds: int, first: int = 0) -> SweepPlan:
    """A sweep of schedules over the deadline."""
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": rounds})
    deadlines = [round(2.0 + 0.01 * k, 4) for k in range(first, first + cells)]
    return SweepPlan(scenario, ("lane",), {"network.deadline_s": deadlines}, tuple(range(seeds)), learning=False)


def warm_up(batches: list[WorkBatch]) -> None:
    """Compile and import what the batches need."""
    compute(batches[:1], BatchStore(), InProcessRunner())


def workers_cpu_s() -> float:
    """Processor time of all workers that have ended; on a shared machine, it tells waiting from work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def workers() -> None:
    """Time a sweep of schedules with one worker process and with two; both include the start of the processes."""
    batches = plan(cells=24, rounds=2000, seeds=20).batches
    warm_up(batches)
    seconds = []
    for count in (1, 2):
        started, worked = time.perf_counter(), workers_cpu_s()
        report = compute(batches, BatchStore(), ProcessRunner(count))
        seconds.append(time.perf_counter() - started)
        used = workers_cpu_s() - worked
        assert not report.failures
        name = f"{count} worker{'s' * (count > 1)}"
        print(f"{name:9}: {seconds[-1]:5.1f} s for {report.computed} cells, {used:5.1f} s on the workers' processors")
    print(f"speed-up with two workers: {seconds[0] / seconds[1]:.2f} (target: at least 1.7)")


def overhead() -> None:
    """Compare sweeps of tiny cells, folder and table included, with the bare simulations, block by block in turn."""
    warm_up(plan(cells=1, rounds=2, seeds=1).batches)
    bare, swept = Spent(), Spent()
    for first in range(0, TINY_CELLS, BLOCK):
        study = plan(cells=BLOCK, rounds=2, seeds=1, first=first)
        with bare:
            for value in study.grid["network.deadline_s"]:
                Simulation(study.scenario.with_values({"network.deadline_s": value}), "lane", [0]).play()
        with tempfile.TemporaryDirectory() as folder, swept:
            result = play_sweep(study, InProcessRunner(), Path(folder) / "sweep")
        assert result.report.computed == BLOCK
    print(f"{TINY_CELLS:,} tiny cells: bare {bare.wall_s:.2f} s, swept {swept.wall_s:.2f} s")
    wall_ms, cpu_ms = (1e3 * extra / TINY_CELLS for extra in (swept.wall_s - bare.wall_s, swept.cpu_s - bare.cpu_s))
    print(f"overhead per cell: {wall_ms:.2f} ms, {cpu_ms:.2f} ms of them on the processor (target: under 10 ms)")


if __name__ == "__main__":
    for part in (workers, overhead):
        if part.__name__ in sys.argv[1:] or not sys.argv[1:]:
            part()
