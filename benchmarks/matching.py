"""The matching benchmark as a script: prints the results of `fedlane bench matching`."""

from fedlane.experiments.benchmarks import matching

if __name__ == "__main__":
    for row in matching():
        print(f"{row.what}: {row.measured}; {row.reference}; ratio {row.ratio} ({row.bound})")
