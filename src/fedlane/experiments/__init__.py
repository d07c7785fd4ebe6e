"""Experiments: the drivers behind `fedlane bench` and, later, the paper's figures and claims."""
