"""Experiments: the paper's figures and claims, and the benchmarks of `fedlane bench`."""
