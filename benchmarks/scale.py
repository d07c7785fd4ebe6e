"""Round time and peak memory against clients, channels and rounds; each size runs in its own process.

python benchmarks/scale.py [POLICY ...]            # sizes of the fleet; default: random, lane and mamab-om:T0=0.01
python benchmarks/scale.py --rounds [POLICY]       # numbers of rounds, with the run folder; default: random
python benchmarks/scale.py --pairs [POLICY ...]    # 100,000 x 100 and 10,000 x 1,000 in turn, three times
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedlane import Run, Scenario, Simulation
from fedlane.cli.session import Session
from fedlane.simulation.results import RunFolder

SIZES = ((1000, 100), (10_000, 100), (30_000, 100), (100_000, 100), (10_000, 1000), (100_000, 10), (300_000, 100))
"""Clients and channels; 100,000 x 100 and 10,000 x 1,000 have the same number of pairs."""
EQUAL_PAIRS = ((100_000, 100), (10_000, 1000))
REPETITIONS = 3
ROUNDS = (10_000, 100_000)
LONG_RUNS = ((20, 8), (200, 100))
"""Clients and channels of the runs of many rounds."""
POLICIES = ("random", "lane", "mamab-om:T0=0.01")


def scenario(clients: int, channels: int, rounds: int) -> Scenario:
    """The paper's scenario for a fleet of this size, without privacy noise; about half of the uploads are late."""
    return Scenario.load("paper-fmnist").with_values(
        {
            "rounds": rounds,
            "network.clients": clients,
            "network.channels": channels,
            "compute.frequency_low_hz": [20e3, 0.0],
            "compute.frequency_high_hz": [200e3, 0.0],
            "compute.cycles_per_sample": 0.3 * clients,
            "privacy.mechanism": "none",
        }
    )


def measure(clients: int, channels: int, policy: str) -> str:
    """Median time of a round after the policy's random phase, and the peak memory of the process.

    Time per pair is processor time, which other work on the machine changes less; rounds use one core.
    """
    start = time.perf_counter()
    simulation = Simulation(scenario(clients, channels, 8), policy, [0], bounded=True)
    setup_s = time.perf_counter() - start
    elapsed_s, busy_s = [], []
    while not simulation.finished:
        start, busy = time.perf_counter(), time.process_time()
        simulation.step()
        elapsed_s.append(time.perf_counter() - start)
        busy_s.append(time.process_time() - busy)
    round_ms = 1e3 * float(np.median(elapsed_s[3:]))  # compilation happens in the first rounds
    per_pair_ns = 1e9 * float(np.median(busy_s[3:])) / (clients * channels)
    size = f"{policy:17} {clients:7,} x {channels:5,}  setup {setup_s:5.2f} s"
    return f"{size}  {round_ms:8.1f} ms per round ({per_pair_ns:6.1f} ns per pair)  peak {peak_mib():6.0f} MiB"


def measure_rounds(clients: int, channels: int, rounds: int, policy: str) -> str:
    """Time and peak memory of a run at the terminal, with its folder, and the time to open the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run")
        terms = scenario(clients, channels, rounds)
        start = time.perf_counter()
        Session(quiet=True).play(policy, lambda: Simulation(terms, policy, [0], bounded=True), folder)
        played_s, peak = time.perf_counter() - start, peak_mib()
        start = time.perf_counter()
        every = Run.load(folder.path).summary.get("client_rounds_every", 1)
        opened_s = time.perf_counter() - start
    return (
        f"{policy:10} {clients} x {channels}, {rounds:7,} rounds  {played_s:6.1f} s ({1e3 * played_s / rounds:5.2f} ms "
        f"per round)  opening {opened_s:5.2f} s  peak {peak:5.0f} MiB  client_rounds every {every}"
    )


def peak_mib() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> None:
    """Measure one size, or start a process for each size."""
    if arguments[:1] == ["--measure"]:
        policy, sizes = arguments[1], [int(text) for text in arguments[2:]]
        clients, channels, *rounds = sizes
        long = measure_rounds(clients, channels, rounds[0], policy) if rounds else ""
        print(long or measure(clients, channels, policy), flush=True)
        return
    mode = arguments.pop(0) if arguments[:1] in (["--rounds"], ["--pairs"]) else ""
    cases: list[tuple[int, ...]] = [*SIZES]
    if mode == "--pairs":
        cases = [*EQUAL_PAIRS] * REPETITIONS
    elif mode == "--rounds":
        cases = [(*size, played) for size in LONG_RUNS for played in ROUNDS]
    for policy in arguments or (POLICIES[:1] if mode == "--rounds" else POLICIES):
        for case in cases:
            subprocess.run([sys.executable, __file__, "--measure", policy, *map(str, case)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
