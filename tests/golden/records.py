"""How a result becomes a record, and how a record is compared with what is stored.

A record has parts, such as ``choices``, ``delays`` or ``energy``. A part is the digest of some columns of all replicas
together and, for floating-point numbers, their sum.

NumPy computes exp, log and power with AVX-512 instructions where the processor has them, and OpenBLAS has matrix
products for every processor, so the last bit of a number may differ; where two matchings are almost equally good, a run
then takes another course. Digests are therefore stored for several arithmetics, which `arithmetic` identifies by the
results of such functions. On a machine of another arithmetic a run is compared with that of the first stored one:

- if all choices and places are the same, the sums of all numbers, with a relative tolerance of 1e-9;
- if not, the sums of delays and queues alone, with a tolerance that leaves room for another course.
"""

import enum
import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DIGESTS = Path(__file__).parent / "digests.json"
ALL = "all"
"""Stands for all stored arithmetics where they agree."""
SUM = "sum"
EXACT = os.environ.get("FEDLANE_GOLDEN_EXACT") == "1"
TEST_SAMPLES = 2000
"""Test samples of the data set that comes with the package."""
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "choices": {"assignments": ("replica", "round", "client", "channel", "punctual"), "clients": ("uploads",)},
    "available": {"client_rounds": ("available",)},
    "present": {"client_rounds": ("present",)},
    "delays": {
        "assignments": ("download_s", "compute_s", "upload_s", "delay_s"),
        "rounds": ("delay_s", "clock_s", "punctual"),
    },
    "queues": {"client_rounds": ("queue",), "clients": ("queue", "quota", "participation", "selection")},
    "shortfall": {"clients": ("present_share", "shortfall")},
    "epsilon": {"client_rounds": ("epsilon", "epsilon_paper"), "clients": ("epsilon", "epsilon_paper")},
    "energy": {"assignments": ("energy_j",), "clients": ("energy_j",)},
    "predictions": {"assignments": ("predicted_low_s", "predicted_median_s", "predicted_high_s")},
    "places": {"clients": ("x_m", "y_m"), "channels": ("x_m", "y_m"), "positions": ("x_m", "y_m")},
    "map": {"coverage": ("gain_db", "building")},
}
"""The columns of a run folder's tables by part. A part without values is left out: energy, predictions, a map."""
INTEGERS = frozenset({"choices", "available", "present", "orders", "counts", "roster", "journal"})
"""Parts of integers, booleans and names, which are the same on every machine as long as no choice differs."""


SINGLE = {"model": 1e-5, "metrics": 1e-5, "observations": 1e-6}
"""Relative tolerance of the sums of numbers of single precision, and of what follows from them; 1e-9 for others."""
ROUGHLY = {"delays": 0.25, "queues": 0.5}
"""How much sums may differ between two courses of a run."""


def digest(*arrays: np.ndarray) -> str:
    """The digest of the values of several arrays, in order; all NaN are the same, and so are both zeros."""
    made = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values) + 0.0
        made.update(values.tobytes())
    return made.hexdigest()[:16]


@functools.cache
def arithmetic(*, training: bool = False) -> str:
    """Identify how this machine computes the functions whose last bit depends on the processor.

    With ``training``, PyTorch's functions are among them.
    """
    x = np.linspace(0.01, 20.0, 4001)
    functions = (np.exp, np.log, np.log2, np.log10, np.log1p, np.sqrt, np.sin, np.cos, lambda v: 10.0 ** (v / 10))
    library = [[function(v) for v in x.tolist()] for function in (math.exp, math.log, math.sin, math.erf)]
    square = np.sin(np.arange(900.0)).reshape(30, 30) + 30.0 * np.eye(30)
    products = (square @ square, square @ x[:30], x @ x, np.linalg.inv(square), np.linalg.cholesky(square @ square.T))
    trained = []
    if training:
        import torch

        data = torch.from_numpy(np.sin(np.arange(64.0 * 784)).reshape(64, 784).astype(np.float32))
        trained = [(data @ data.T).numpy(), torch.log_softmax(data[:, :10], 1).numpy()]
    return digest(*(function(x) for function in functions), np.array(library), *products, *trained)[:8]


def part(*arrays: np.ndarray, training: bool = False) -> dict[str, Any]:
    """The digest of some arrays under this machine's arithmetic, and the sum of those that are numbers."""
    values: dict[str, Any] = {arithmetic(training=training): digest(*arrays)}
    numbers = [array for array in arrays if array.dtype.kind == "f"]
    if numbers:
        values[SUM] = float(f"{sum(float(np.nansum(array, dtype=np.float64)) for array in numbers):.13g}")
    return values


def run_parts(
    tables: Mapping[str, Any], *, decimals: int | None = None, training: bool = False
) -> dict[str, dict[str, Any]]:
    """The parts of a run, by name.

    Args:
        tables: The tables of the run.
        decimals: Decimals to which numbers are rounded that were measured on a clock; None for exact numbers.
        training: Whether the schedule depends on the training.
    """
    parts = {}
    for name, columns in PARTS.items():
        kind = np.int64 if name in INTEGERS else np.float64
        arrays = [
            tables[table][column].to_numpy(zero_copy_only=False).astype(kind)
            for table, wanted in columns.items()
            for column in wanted
            if table in tables and column in tables[table].column_names
        ]
        if name in INTEGERS or any(np.isfinite(array).any() for array in arrays):
            rounded = arrays if decimals is None else [np.round(array, decimals) for array in arrays]
            parts[name] = part(*rounded, training=training)
    return parts


class Course(enum.Enum):
    """How a record that is compared came about."""

    HERE = "all of it was computed by this machine"
    FILE = "all of it was read from a stored file"
    CONTINUED = "a stored file was continued by this machine"


def same_parts(now: Mapping[str, Any], then: Mapping[str, Any], course: Course = Course.HERE) -> bool:
    """Compare a record of this machine with a stored one; the error names the parts that differ.

    Returns:
        Whether all choices are those of the first stored arithmetic, so that what follows from them can be compared.
    """
    here = next(key for key in now["choices"] if key != SUM)
    first = {name: next(value for key, value in values.items() if key != SUM) for name, values in then.items()}
    exact = course is Course.FILE or here in stored()["arithmetics"][: 2 if course is Course.CONTINUED else None]
    assert exact or not EXACT, f"no digest is stored for arithmetic {here}"
    assert set(now) == set(then), "other parts"
    same_course = all(now[name][here] == first[name] for name in then if name in INTEGERS) and (
        "places" not in then or _close(now, then, "places")  # on streets, a last bit decides about a turn
    )
    differing = []
    for name, values in then.items():
        if exact:
            expected = first[name] if course is Course.FILE else values.get(ALL, values.get(here))
            same = now[name][here] == expected
        else:
            tolerance = SINGLE.get(name, 1e-9) if same_course else ROUGHLY.get(name)
            same = SUM not in values or tolerance is None or _close(now, then, name, tolerance)
        if not same:
            differing.append(f"{name} (sum {now[name].get(SUM)}, stored {values.get(SUM)})" if SUM in values else name)
    assert not differing, f"these parts differ: {', '.join(differing)}"
    return same_course


def _close(now: Mapping[str, Any], then: Mapping[str, Any], name: str, tolerance: float = 1e-9) -> bool:
    """Whether the sums of a part agree within a relative tolerance."""
    return bool(now[name][SUM] == pytest.approx(then[name][SUM], rel=tolerance, abs=1e-9))


def curve_record(run: Any) -> dict[str, Any]:
    """The learning curves of a run, all replicas in turn, and the digest of the final weights."""
    accuracy, loss = (run.rounds[name].to_numpy() for name in ("accuracy", "loss"))
    tested = ~np.isnan(accuracy)
    return {
        "row": np.flatnonzero(tested).tolist(),
        "accuracy": accuracy[tested].tolist(),
        "loss": loss[tested].tolist(),
        "weights": digest(*(run.model[name] for name in sorted(run.model))),
        "tensors": {name: list(run.model[name].shape) for name in sorted(run.model)},
    }


def same_curves(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Compare curves within float tolerance, and weights exactly where that is asked for."""
    assert now["row"] == then["row"]
    assert now["tensors"] == then["tensors"]
    assert now["loss"] == pytest.approx(then["loss"], rel=1e-5)
    assert now["accuracy"] == pytest.approx(then["accuracy"], abs=2 / TEST_SAMPLES)
    if EXACT:
        assert (now["loss"], now["accuracy"], now["weights"]) == (then["loss"], then["accuracy"], then["weights"])


def layout(run: Any) -> dict[str, str]:
    """Names and types of the columns of every table."""
    return {
        name: ", ".join(f"{column.name} {column.type}" for column in table.schema)
        for name, table in sorted(run.tables.items())
    }


@functools.cache
def stored() -> dict[str, Any]:
    """The content of digests.json."""
    return json.loads(DIGESTS.read_text())


def pinned(group: str, name: str) -> dict[str, Any]:
    """The stored record of one run."""
    return {part: records[name] for part, records in stored()[group].items() if name in records}


def by_part(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Records by name, as digests.json holds them: by part and then by name, so that a diff shows what changed."""
    parts: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        for key, values in record.items():
            parts.setdefault(key, {})[name] = values
    order = [*PARTS, *sorted(set(parts) - set(PARTS))]
    return {key: parts[key] for key in order if key in parts}


def text(content: Mapping[str, Any], depth: int = 0) -> str:
    """JSON with one line for every record, so that a diff shows which ones changed."""
    if depth == 3 or not isinstance(content, dict):
        return json.dumps(content)
    pad = " " * (depth + 1)
    lines = (f"{pad}{json.dumps(key)}: {text(value, depth + 1)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n" + pad[1:] + "}"
