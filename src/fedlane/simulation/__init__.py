"""Simulation, which joins the planes: setup, one round, whole runs and their results."""

from fedlane.simulation.results import Run
from fedlane.simulation.run import simulate

__all__ = ["Run", "simulate"]
