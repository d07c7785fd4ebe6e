"""Round time and peak memory against clients x channels; each size runs in its own process.

python benchmarks/scale.py [POLICY]      # default mamab-om
"""

import resource
import subprocess
import sys
import time

import numpy as np

from fedlane import Scenario, Simulation

SIZES = ((100, 10), (1000, 100), (3000, 300), (10_000, 1000))


def measure(clients: int, channels: int, policy: str) -> str:
    """Median time of a round after the policy's random phase, and the peak memory of the process."""
    scenario = Scenario.load("paper-fmnist").with_values(
        {
            "rounds": 8,
            "network.clients": clients,
            "network.channels": channels,
            "compute.frequency_low_hz": [20e3, 0.0],
            "compute.frequency_high_hz": [200e3, 0.0],
            "compute.cycles_per_sample": 0.3 * clients,
        }
    )
    simulation = Simulation(scenario, policy, [0])
    times = []
    while not simulation.finished:
        start = time.perf_counter()
        simulation.step()
        times.append(time.perf_counter() - start)
    pairs = clients * channels
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    median_ms = 1e3 * float(np.median(times[2:]))
    per_pair_ns = 1e6 * median_ms / pairs
    size = f"{clients:6,} x {channels:5,}"
    return f"{size}  {median_ms:9.2f} ms per round ({per_pair_ns:6.1f} ns per pair)  peak {peak_mb:6.0f} MiB"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]), flush=True)
    else:
        policy = sys.argv[1] if len(sys.argv) > 1 else "mamab-om:T0=0.01"
        for size in SIZES:
            subprocess.run([sys.executable, __file__, *map(str, size), policy], check=True)
