"""Simulation: joins the planes. Setup, one round, runs and results."""

from fedlane.simulation.results import Run
from fedlane.simulation.run import simulate

__all__ = ["Run", "simulate"]
