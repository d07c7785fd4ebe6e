"""A real federation: lane compared with random, links with size / rate, and predicted with measured times.

    sudo .venv/bin/python benchmarks/testbed.py [--rounds 40] [--seed 0] [--out DIR]

Needs Linux, root, iproute2 and an otherwise idle machine. Takes about 20 minutes for 40 rounds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SETTING = "--clients 6 --lanes 3 --rates 1:20 --payload 1000000 --deadline 30 --calibrate"


def main() -> int:
    """Run the testbed and compare the results with their bounds; exit status 3 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stock-nodes", action="store_true", help="use Flower's SuperNodes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp()) / "testbed"
    command = [str(Path(sys.executable).parent / "fedlane"), "testbed", *SETTING.split()]
    command += f"--policy lane --policy random --rounds {arguments.rounds} --seed {arguments.seed}".split()
    command += ["--out", str(out), *(["--stock-nodes"] if arguments.stock_nodes else [])]
    if subprocess.run(command).returncode != 0:
        return 1
    runs = {row["policy"]: row for row in json.loads((out / "testbed.json").read_text())}
    lane, random = runs["lane"], runs["random"]
    transfers = [transfer for name in runs for transfer in json.loads((out / f"{name}.transfers.json").read_text())]
    ratios = np.array([transfer["seconds"] / transfer["expected_s"] for transfer in transfers])
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    rows = [
        ("wall-clock, lane / random", lane["wall_s"] / random["wall_s"], "at most 0.8", 0.0, 0.8),
        ("largest quota shortfall (lane)", lane["quota_shortfall"], "at most 0.1", 0.0, 0.1),
        ("link time / (size / rate), median", middle, "0.85 to 1.15", 0.85, 1.15),
        *(
            (f"predicted / real time, {name}", row["predicted_s"] / row["wall_s"], "0.8 to 1.2", 0.8, 1.2)
            for name, row in runs.items()
        ),
    ]
    print(f"\n{len(transfers)} transfers, link time / (size / rate): 5% {low:.3f}, median {middle:.3f}, 95% {high:.3f}")
    print(f"lane {lane['wall_s']:.1f} s, random {random['wall_s']:.1f} s; results in {out}\n")
    print(f"{'what':38} {'measured':>9}  required")
    for what, value, bound, lower, upper in rows:
        print(f"{what:38} {value:9.3f}  {bound}{'' if lower <= value <= upper else '   MISSED'}")
    return 0 if all(lower <= value <= upper for _, value, _, lower, upper in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
