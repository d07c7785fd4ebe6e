"""Readable names and units of measures and table columns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureLabel:
    """The name of a measure for readers.

    Attributes:
        text: The name.
        unit: Unit of the shown value, or an empty string.
        scale: Factor from the stored value to the shown one.
        stored: Unit of the stored value, where it is not the shown one.
    """

    text: str
    unit: str = ""
    scale: float = 1.0
    stored: str = ""

    @property
    def stored_unit(self) -> str:
        """Unit of the value in files."""
        return self.stored or self.unit

    @property
    def with_unit(self) -> str:
        """The name with its unit in parentheses."""
        return f"{self.text} ({self.unit})" if self.unit else self.text


_LABELS = {
    "cumulative_delay_s": MeasureLabel("cumulative delay", "s"),
    "mean_round_s": MeasureLabel("mean round time", "s"),
    "late_share": MeasureLabel("late uploads", "%", 100.0, "share of uploads"),
    "min_participation": MeasureLabel("min. participation", stored="share of rounds"),
    "max_participation": MeasureLabel("max. participation", stored="share of rounds"),
    "quota_shortfall": MeasureLabel("largest quota shortfall", stored="share of rounds"),
    "problem_shortfall": MeasureLabel("largest shortfall from the problem's quotas", stored="share of rounds"),
    "max_queue": MeasureLabel("largest queue", stored="rounds"),
    "final_accuracy": MeasureLabel("final accuracy", "%", 100.0, "share of test samples"),
    "feasible_scale": MeasureLabel("feasible multiple of the quotas", stored="multiple"),
    "epsilon": MeasureLabel("largest epsilon of a client"),
    "delay_over_optimum": MeasureLabel("delay relative to the optimum", stored="multiple"),
    "time_to_accuracy_s": MeasureLabel("time to accuracy", "s"),
    "time_to_target_s": MeasureLabel("time to target accuracy", "s"),
    "simulated_time_s": MeasureLabel("simulated time", "s"),
    "energy_j": MeasureLabel("energy", "J"),
    "coverage_90": MeasureLabel("coverage of the predicted 90% intervals", "%", 100.0, "share of uploads"),
    "clock_s": MeasureLabel("simulated time", "s"),
    "delay_s": MeasureLabel("round time", "s"),
    "punctual": MeasureLabel("punctual clients"),
    "accuracy": MeasureLabel("test accuracy", "%", 100.0),
    "loss": MeasureLabel("test loss"),
    "round": MeasureLabel("round"),
}


def measure_label(name: str) -> MeasureLabel:
    """Return the label of a measure or column; an unknown one is shown by its name."""
    return _LABELS.get(name) or MeasureLabel(name.replace("_", " "))
