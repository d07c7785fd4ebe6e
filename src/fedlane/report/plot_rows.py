"""The rows of a figure's data that have a value of the measure, and what to say about those that do not."""

from dataclasses import dataclass, replace

import numpy as np

from fedlane.records import FloatArray
from fedlane.report.plot_data import PlotData
from fedlane.report.plot_request import PlotRequest
from fedlane.validate import InputError


@dataclass(frozen=True)
class MeasuredRows:
    """Rows of the data in which a measure has a value."""

    data: PlotData
    measure: str
    present: FloatArray
    index: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    def having(self, request: PlotRequest) -> "MeasuredRows":
        """Keep the rows that have the measure and every key of the figure, and say how many do not."""
        data = self.data
        names = [name for name in (request.x, request.y, request.color, request.facet) if name in data.keys]
        index = tuple(r for r in range(data.rows) if all(data.keys[name or ""][r] is not None for name in names))
        if not index:
            lacking = next(name for name in names if all(value is None for value in data.keys[name or ""]))
            raise InputError(f"no run has a value for '{lacking}'")
        remarks = []
        if len(index) < data.rows:
            policies = {str(data.keys["policy"][r]) for r in range(data.rows) if r not in index}
            remarks.append(f"left out, without the key: {', '.join(sorted(policies))}")
        kept = tuple(r for r in index if self.present[r])
        if not kept:
            raise InputError(f"no run has a value of {self.measure}{_why_missing(self)}")
        if len(kept) < len(index):
            remarks.append(f"{len(index) - len(kept)} of {len(index)} values of {self.measure} are missing")
        return replace(self, index=kept, remarks=tuple(remarks))


def _why_missing(rows: MeasuredRows) -> str:
    """Why no run has a value of a measure, as the end of a message."""
    learned = np.isfinite(rows.data.measures.get("final_accuracy", np.zeros(1))).any()
    if rows.measure == "time_to_accuracy_s" and learned:
        return ": the runs have no target accuracy (--target), or did not reach it"
    return ": the runs did not learn" if "accuracy" in rows.measure or rows.measure == "loss" else ""
