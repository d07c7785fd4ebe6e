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

TINY_CELLS = 1000


def plan(cells: int, rounds: int, seeds: int) -> SweepPlan:
    """A sweep of schedules over the deadline."""
    scenario = Scenario.load("paper-fmnist").with_values({"rounds": rounds})
    deadlines = [round(2.0 + 0.01 * k, 4) for k in range(cells)]
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
    """Compare a sweep of tiny cells, its folder and table included, with the bare simulations."""
    study = plan(cells=TINY_CELLS, rounds=2, seeds=1)
    warm_up(study.batches)
    started = time.perf_counter()
    for value in study.grid["network.deadline_s"]:
        Simulation(study.scenario.with_values({"network.deadline_s": value}), "lane", [0]).play()
    bare_s = time.perf_counter() - started
    study = plan(cells=TINY_CELLS, rounds=2, seeds=1)  # a new one, whose cells are not planned yet
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = play_sweep(study, InProcessRunner(), Path(folder) / "sweep")
        sweep_s = time.perf_counter() - started
    assert result.report.computed == TINY_CELLS
    extra_ms = 1e3 * (sweep_s - bare_s) / TINY_CELLS
    print(f"{TINY_CELLS:,} tiny cells: bare {bare_s:.2f} s, swept {sweep_s:.2f} s")
    print(f"overhead per cell: {extra_ms:.2f} ms (target: under 10 ms)")


if __name__ == "__main__":
    for part in (workers, overhead):
        if part.__name__ in sys.argv[1:] or not sys.argv[1:]:
            part()
