"""The matching benchmark as a script: the same figures as `fedlane bench matching`."""

from fedlane.experiments.benchmarks import matching

if __name__ == "__main__":
    for figure in matching():
        print(f"{figure.what}: {figure.measured}; {figure.reference}; ratio {figure.ratio} ({figure.bound})")
