"""Cost of the live panel: the same rounds with and without the panel on a terminal, in turns.

python benchmarks/live_panel.py
"""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from fedlane import Scenario, Simulation
from fedlane.cli.display import Display

PAIRS = 6


@dataclass(frozen=True)
class Case:
    """A simulation to time."""

    name: str
    scenario: Scenario
    rounds: int
    seeds: int
    learning: bool


def played(case: Case, console: Console, *, quiet: bool) -> tuple[float, float]:
    """Processor time of a case in seconds, in total and for drawing the panel."""
    simulation = Simulation(
        case.scenario.with_values({"rounds": case.rounds}), "lane", range(case.seeds), learning=case.learning
    )
    with Display(console, quiet=quiet) as display:
        display.begin(simulation)
        started = time.thread_time()
        simulation.play(on_round=lambda: display.update(simulation))
        return time.thread_time() - started, display.drawing_s


def main() -> None:
    """Time all cases on two sizes of terminal and print the results."""
    small, large = Scenario.load("quickstart"), {"network.clients": 200, "network.channels": 40}
    cases = (
        Case("no learning", small, 4000, 1, False),
        Case("no learning, 20 seeds", small, 800, 20, False),
        Case("200 clients, 40 channels, no learning", Scenario.load("paper-fmnist").with_values(large), 100, 1, False),
        Case("learning", small, 60, 1, True),
    )
    for columns, rows in ((80, 24), (160, 50)):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with (
            subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL) as reader,
            os.fdopen(slave, "w") as file,
        ):
            os.close(master)
            console = Console(file=file, force_terminal=True, width=columns, height=rows)
            for case in cases:
                times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for turn in range(2 * PAIRS):
                    quiet = turn % 4 in (1, 2)  # each variant runs first equally often
                    times[quiet].append(played(case, console, quiet=quiet))
                (shown_s, _), (quiet_s, _) = (np.min(times[quiet], axis=0) for quiet in (False, True))
                total_s, drawing_s = np.sum(times[False], axis=0)
                print(
                    f"{columns}x{rows} {case.name:42} {shown_s:5.2f} s, quiet {quiet_s:5.2f} s; "
                    f"drawing {drawing_s / total_s:.1%}",
                    flush=True,
                )
            reader.terminate()


if __name__ == "__main__":
    main()
