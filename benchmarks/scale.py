"""Round time and peak memory against clients, channels and rounds; each size runs in its own process.

python benchmarks/scale.py [POLICY ...]            # sizes of the fleet; default: random, lane and mamab-om:T0=0.01
python benchmarks/scale.py --rounds [POLICY]       # numbers of rounds, with the run folder; default: random
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedlane import Run, Scenario, Simulation
from fedlane.simulation.results import RunFolder

SIZES = ((1000, 100), (10_000, 100), (30_000, 100), (100_000, 100), (10_000, 1000), (100_000, 10), (300_000, 100))
"""Clients and channels; 100,000 x 100 and 10,000 x 1,000 have the same number of pairs."""
ROUNDS = (1000, 10_000, 100_000)
LONG_RUN = (200, 100)
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
    """Median time of a round after the policy's random phase, and the peak memory of the process."""
    start = time.perf_counter()
    simulation = Simulation(scenario(clients, channels, 8), policy, [0], bounded=True)
    setup_s = time.perf_counter() - start
    times = []
    while not simulation.finished:
        start = time.perf_counter()
        simulation.step()
        times.append(time.perf_counter() - start)
    median_ms = 1e3 * float(np.median(times[3:]))  # compilation happens in the first rounds
    per_pair_ns = 1e6 * median_ms / (clients * channels)
    size = f"{policy:17} {clients:7,} x {channels:5,}  setup {setup_s:5.2f} s"
    return f"{size}  {median_ms:8.1f} ms per round ({per_pair_ns:6.1f} ns per pair)  peak {peak_mib():6.0f} MiB"


def measure_rounds(rounds: int, policy: str) -> str:
    """Time and peak memory of a run of many rounds, its folder included, and the time to open the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run")
        simulation = Simulation(scenario(*LONG_RUN, rounds), policy, [0], bounded=True)
        simulation.keep_segments_in(folder.path)
        start = time.perf_counter()
        simulation.play()
        played_s = time.perf_counter() - start
        folder.write(simulation.result())
        written_s = time.perf_counter() - start - played_s
        peak = peak_mib()
        start = time.perf_counter()
        every = Run.load(folder.path).summary.get("client_rounds_every", 1)
        opened_s = time.perf_counter() - start
    return (
        f"{policy:17} {rounds:9,} rounds  {1e3 * played_s / rounds:6.2f} ms per round  writing {written_s:6.2f} s  "
        f"opening {opened_s:5.2f} s  peak {peak:6.0f} MiB  client_rounds every {every}"
    )


def peak_mib() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> None:
    """Measure one size, or start a process for each size."""
    if arguments[:1] == ["--measure"]:
        policy, sizes = arguments[1], [int(text) for text in arguments[2:]]
        print(measure_rounds(sizes[0], policy) if len(sizes) == 1 else measure(sizes[0], sizes[1], policy), flush=True)
        return
    long = arguments[:1] == ["--rounds"]
    policies = arguments[1:] or POLICIES[:1] if long else arguments or POLICIES
    cases: list[tuple[int, ...]] = [(rounds,) for rounds in ROUNDS] if long else list(SIZES)
    for policy in policies:
        for case in cases:
            subprocess.run([sys.executable, __file__, "--measure", policy, *map(str, case)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
