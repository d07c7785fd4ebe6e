"""A program that plays a sweep of 40 slow cells: ``sweep_driver.py FOLDER WORKERS``."""

import sys

from fedlane import sweep

if __name__ == "__main__":
    policy = "support.counted_policy:Counted"
    grid = {"policies.counted.tag": list(range(40)), "rounds": [400]}
    sweep("quickstart", policy, grid, seeds=4, learning=False, workers=int(sys.argv[2]), out=sys.argv[1])
