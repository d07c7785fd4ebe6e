"""The time of schedules in the ray-traced city, next to the paper's network: 10 clients, 4 channels, `random`.

python benchmarks/city.py [REPETITIONS]
"""

import sys
import time

from fedlane import Scenario, Simulation

REPLICAS, ROUNDS = 200, 500


def measure(name: str) -> tuple[float, float]:
    """Return the elapsed and the processor time of all replicas' schedules, setup included, in seconds."""
    scenario = Scenario.load(name).with_values({"rounds": ROUNDS, "privacy.mechanism": "none"})
    start, busy = time.perf_counter(), time.process_time()
    Simulation(scenario, "random", range(REPLICAS)).play()
    return time.perf_counter() - start, time.process_time() - busy


def main() -> None:
    """Measure both worlds in turn, so that other work on the machine delays them alike, and print the ratios."""
    names = ("paper-fmnist", "city-munich")
    for name in names:  # compile, and read the map
        Simulation(Scenario.load(name).with_values({"rounds": 2}), "random", range(2)).play()
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        (paper_s, paper_busy_s), (city_s, city_busy_s) = (measure(name) for name in names)
        print(
            f"paper-fmnist {paper_s:.2f} s ({paper_busy_s:.2f} s of processor), "
            f"city-munich {city_s:.2f} s ({city_busy_s:.2f} s): "
            f"{city_s / paper_s:.2f} times as long, {city_busy_s / paper_busy_s:.2f} times the processor time"
        )


if __name__ == "__main__":
    main()
