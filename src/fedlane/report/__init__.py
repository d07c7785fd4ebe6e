"""The report plane: tables, figures and pages from results. It never simulates."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlane.report.plotting import plot

__all__ = ["plot"]


def __getattr__(name: str) -> Any:
    """Load `plot` on first use, so that the other modules do not need what figures need."""
    if name != "plot":
        raise AttributeError(f"module 'fedlane.report' has no attribute '{name}'")
    from fedlane.report.plotting import plot

    return plot
