"""Speed measurements for `fedlane bench`, each next to a reference measured in the same run.

Everything runs on one thread. Times are the best of several repetitions, because other work on the machine can only
make them longer.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedlane.cache import cache_folder
from fedlane.matching import max_min_matching
from fedlane.records import Context
from fedlane.rng import RoundStreams
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import DISTRIBUTION_CELLS, Choice
from fedlane.simulation.run import Simulation
from fedlane.validate import InputError


@dataclass(frozen=True)
class BenchmarkRow:
    """One measurement, as text for a table."""

    what: str
    measured: str
    reference: str
    ratio: str
    bound: str


def matching() -> list[BenchmarkRow]:
    """Time `max_min_matching` and SciPy's `linear_sum_assignment` on the same matrices."""
    rng = np.random.default_rng(0)
    max_min_matching(rng.random((2, 10, 4)))  # compile
    figures = []
    for clients, channels, bound_effect in ((1000, 100, 1.0), (10_000, 1000, 0.1)):
        plain = rng.random((clients, channels))
        for name, matrix, bound in (
            ("plus a uniform effect per client", plain + rng.random((clients, 1)), bound_effect),
            ("plain uniform", plain, 1.0),
        ):
            ours, scipy, one_pass = best_of(
                5, partial(max_min_matching, matrix), partial(linear_sum_assignment, matrix, maximize=True), matrix.max
            )
            figures.append(
                BenchmarkRow(
                    what=f"max_min_matching, {clients:,} x {channels:,}, {name}",
                    measured=f"{ours * 1e3:.2f} ms ({ours / one_pass:.0f} times matrix.max())",
                    reference=f"SciPy linear_sum_assignment {scipy * 1e3:.2f} ms",
                    ratio=f"{ours / scipy:.3f}",
                    bound=f"at most {bound:g}",
                )
            )
    batch = rng.random((10_000, 10, 4))
    ours, scipy = best_of(
        3, lambda: max_min_matching(batch), lambda: [linear_sum_assignment(m, maximize=True) for m in batch]
    )
    figures.append(
        BenchmarkRow(
            what="max_min_matching, per matrix in a batch of 10,000 of 10 x 4",
            measured=f"{ours * 1e2:.2f} us",
            reference=f"SciPy linear_sum_assignment in a loop {scipy * 1e2:.2f} us",
            ratio=f"{ours / scipy:.3f}",
            bound="at most 1",
        )
    )
    return figures


def schedule() -> list[BenchmarkRow]:
    """Time whole schedules, many replicas at once and one at a time, and single decisions."""
    paper = Scenario.load("paper-fmnist")
    figures = []
    for policy in ("mamab-om", "lane"):
        _run(paper.with_values({"rounds": 20}), policy, [0])  # compile
        together = _run(paper, policy, range(200))
        alone = np.mean([_run(paper, policy, [seed]) for seed in range(5)])
        figures.append(
            BenchmarkRow(
                what=f"{policy}, paper-fmnist, 200 replicas x 500 rounds, including setup and delays",
                measured=f"{together:.2f} s",
                reference=f"one replica at a time {200 * alone:.1f} s",
                ratio=f"{together / (200 * alone):.3f}",
                bound="under 5 s" if policy == "mamab-om" else "",
            )
        )
    small, large = decision_s(100, 10), decision_s(1000, 100)
    figures.append(
        BenchmarkRow(
            what="lane, one decision with 1,000 clients x 100 channels, all pairs observed (slowest of 20)",
            measured=f"{large * 1e3:.1f} ms",
            reference=f"100 x 10: {small * 1e3:.2f} ms",
            ratio=f"{large / small:.1f}",
            bound="at most 50 ms",
        )
    )
    return figures


def decision_s(clients: int, channels: int) -> float:
    """Time in seconds of the slowest of 20 decisions of `lane`, all pairs observed five times (the hardest case)."""
    scenario = Scenario.load("paper-fmnist").with_values(
        {
            "rounds": 1,
            "network.clients": clients,
            "network.channels": channels,
            "compute.frequency_low_hz": [20e3, 0.0],
            "compute.frequency_high_hz": [200e3, 0.0],
            "compute.cycles_per_sample": 0.3 * clients,
        }
    )
    simulation = Simulation(scenario, "lane", [0])
    truth = simulation.setup.network.distributions(DISTRIBUTION_CELLS)
    pairs = clients * channels
    state = {
        **simulation.policy.init(simulation.setup.problem),
        "count": np.full((1, clients, channels), 5.0, np.float32),
        "information": np.full((1, clients, channels), 5.0, np.float32),
        "slot": np.arange(pairs, dtype=np.int32).reshape(1, clients, channels),
        "slots": np.array([pairs]),
        "history": np.concatenate([truth.cdf, truth.success[..., None]], -1, dtype=np.float32).reshape(1, pairs, -1),
    }
    rng = np.random.default_rng(0)
    streams = RoundStreams([0], "policy")
    times, previous = [], np.full((1, clients), -1, np.int64)
    for round in range(21):
        known = {"round": round, "queue": rng.exponential(5.0, (1, clients)), "previous": previous}
        context = Context.first(simulation.setup.problem, **known)
        start = time.perf_counter()
        chosen = simulation.policy.select(state, context, streams.at(round))
        times.append(time.perf_counter() - start)
        assert isinstance(chosen, Choice)
        previous = chosen.channel
    return max(times[1:])


def learning() -> list[BenchmarkRow]:
    """Time the paper's MLP task on one CPU thread, relative to the core's speed in matrix products."""
    from fedlane.learning.strict import one_thread

    with one_thread():
        pairs = [(round_s(), round_s("rigorous")) for _ in range(3)]
        per_round, rigorous, ideal = *map(min, zip(*pairs, strict=True)), ideal_round_s()
    return [
        BenchmarkRow(
            what="one round of one federation: paper-fmnist's MLP, mechanism paper, one thread",
            measured=f"{per_round * 1e3:.2f} ms ({1 / per_round:,.0f} rounds/s)",
            reference=f"{MLP_ROUND_FLOP / 1e6:.0f} MFLOP at the core's matrix speed {ideal * 1e3:.2f} ms",
            ratio=f"{per_round / ideal:.2f}",
            bound="",
        ),
        BenchmarkRow(
            what="the same with mechanism rigorous: Poisson samples of the same mean size, noise in every step",
            measured=f"{rigorous * 1e3:.2f} ms ({1 / rigorous:,.0f} rounds/s)",
            reference=f"mechanism paper {per_round * 1e3:.2f} ms",
            ratio=f"{per_round / rigorous:.2f} of its rounds per second",
            bound="at least 0.8",
        ),
    ]


MLP_ROUND_FLOP = 4 * 5 * 64 * (2 * 784 * 64 * 2 + 2 * 64 * 10 * 3)
"""4 clients x 5 steps x 64 samples: two products with the large layer, three with the small one."""


def ideal_round_s() -> float:
    """Seconds that a round's arithmetic takes at the speed of one large matrix product on this core."""
    import torch

    size = 1024
    a, b = torch.randn(2, size, size)
    (product,) = best_of(10, lambda: a @ b)
    return MLP_ROUND_FLOP / (2 * size**3 / product)


def round_s(mechanism: str = "paper", rounds: int = 150) -> float:
    """Median time in seconds of one round of learning, with 4 random clients of 10, all punctual.

    Drawing samples, clipping, noise and aggregation are included.
    """
    from fedlane.simulation.run import learning_task
    from fedlane.simulation.setup import prepare

    changes = {} if mechanism == "paper" else {"privacy.mechanism": mechanism, "privacy.epsilon": 8.0}
    task = learning_task(prepare(Scenario.load("paper-fmnist").with_values(changes), [0]))
    federation = task.federation("cpu")
    rng = np.random.default_rng(0)
    times = []
    for t in range(rounds):
        client = rng.permutation(10)[None, :4]
        start = time.perf_counter()
        federation.play(t, client, np.ones((1, 4), np.bool_))
        times.append(time.perf_counter() - start)
    return float(np.median(times[10:]))


def peers() -> list[BenchmarkRow]:
    """Time FedLane, pfl and Flower's simulation engine in turn on the paper's MLP task.

    FedLane clips every sample; the others do not. All run on one core. Each peer runs in its own environment, which is
    created on first use in the user's cache (set FEDLANE_PEERS to use another folder).
    """
    scripts = Path("benchmarks") / "peers"
    if not scripts.is_dir():
        raise InputError("bench peers needs the repository: run it from the root of a checkout")
    root = Path(os.environ.get("FEDLANE_PEERS", cache_folder() / "peers"))
    ours: list[float] = []
    pfl: dict[str, list[float]] = {"none": [], "local": [], "central": []}
    fedlane = [sys.executable, "-c", "from fedlane.experiments import benchmarks as b; b.report_round()"]
    for _ in range(3):
        ours.append(_seconds_per_round(fedlane))
        for privacy, times in pfl.items():
            pfl_python = _peer(root, "pfl", "pfl[pytorch]==0.6.0")
            times.append(_seconds_per_round([pfl_python, str(scripts / "pfl_mlp.py"), "150", privacy]))
    python = _peer(root, "flower", "flwr[simulation]==1.41.0")
    stock, fast = (
        _seconds_per_round([python, str(scripts / "flower_mlp.py"), "15", mode]) for mode in ("stock", "fast")
    )
    best = min(ours)
    machine, _ = learning()
    rows = [
        ("pfl 0.6, no per-sample clipping", min(pfl["none"]), "at least 3.5"),
        ("pfl 0.6, local DP: each update clipped, with noise", min(pfl["local"]), ""),
        ("pfl 0.6, central DP: each update clipped, their sum with noise", min(pfl["central"]), ""),
        ("Flower 1.41 simulation, stock", stock, ""),
        ("Flower 1.41 simulation, polling more often", fast, "at least 25 for the faster of the two"),
    ]
    from fedlane.learning.strict import one_thread

    with one_thread():
        ideal = ideal_round_s()
    return [machine] + [
        BenchmarkRow(
            what=f"one round of the paper's MLP task, compared with {name}",
            measured=f"{best * 1e3:.2f} ms ({ideal / best:.0%} of the core's matrix speed)",
            reference=f"{seconds * 1e3:.2f} ms ({ideal / seconds:.0%})",
            ratio=f"{seconds / best:.2f} times as fast",
            bound=bound,
        )
        for name, seconds, bound in rows
    ]


def report_round() -> None:
    """Print FedLane's seconds per round on one thread, in the format of the peers' scripts."""
    import torch

    torch.set_num_threads(1)
    print(f"seconds_per_round {round_s():.6f}")


def _peer(root: Path, name: str, package: str) -> str:
    """Path of Python in a peer's environment, created on first use with the torch version of the constraints file."""
    python = root / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(root / name)], check=True)
        pinned = [line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch==")]
        install = [str(python), "-m", "pip", "install", "--quiet", *pinned, package]
        try:
            subprocess.run(install, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            shutil.rmtree(root / name)
            raise InputError(f"{package} cannot be installed: {error.stderr.strip().splitlines()[-1]}") from error
    return str(python)


def _seconds_per_round(command: list[str]) -> float:
    """Run a benchmark script on one core and read the time that it prints."""
    one_core = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*one_core, *command], capture_output=True, text=True, env=environment)
    lines = [line for line in result.stdout.splitlines() if line.startswith("seconds_per_round ")]
    if result.returncode or not lines:
        last = (result.stderr.strip() or "no output").splitlines()[-1]
        raise InputError(f"benchmark {Path(command[1]).name} failed: {last}")
    return float(lines[-1].split()[1])


def best_of(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Shortest time of each call in seconds. Calls alternate, so that a busy moment affects all of them."""
    best = [np.inf] * len(calls)
    for _ in range(repeats):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def _run(scenario: Scenario, policy: str, seeds: range | list[int]) -> float:
    start = time.perf_counter()
    simulation = Simulation(scenario, policy, seeds)
    simulation.play()
    simulation.result()
    return time.perf_counter() - start
