"""The movement of a run's clients as a page embeds it: where they were at the starts of some rounds."""

from typing import Any

import numpy as np

from fedlane.report.packing import packed_doubles, packed_levels
from fedlane.report.page_fit import Detail
from fedlane.report.run_arrays import RunArrays


def movement(arrays: RunArrays, detail: Detail, area_m: float | None) -> dict[str, Any] | None:
    """Positions of the first seeds at the starts of every m-th stored round, and of the last.

    Args:
        arrays: the run.
        detail: how many seeds and rounds are embedded.
        area_m: side of the square in which the clients move, if it is known; the map shows all of it.

    Returns:
        ``round`` (P,), ``clock_s`` (S, P): the simulated time when the round began, ``xy_m`` (S, P, U, 2) relative to
        ``origin_m``, and ``extent_m``: the left, lower, right and upper edge of the map. None if nobody moves.
    """
    positions = arrays.positions
    if positions is None or not len(positions.rounds) or not np.isfinite(positions.xy_m[0]).all():
        return None
    last = len(positions.rounds) - 1
    frames = np.unique(np.append(np.arange(0, last, detail.move_every), last))
    rounds = positions.rounds[frames]
    start_s = np.nancumsum(arrays.delay_s, axis=1) - np.nan_to_num(arrays.delay_s)
    xy_m = positions.xy_m[: detail.seeds, frames]
    low, high = np.nanmin(xy_m, axis=(0, 1, 2)), np.nanmax(xy_m, axis=(0, 1, 2))
    stations = arrays.channel_xy_m[np.isfinite(arrays.channel_xy_m).all(axis=-1)]
    corners = [low, high, *stations, *([(0.0, 0.0), (area_m, area_m)] if area_m else [])]
    return {
        "round": rounds.tolist(),
        "clock_s": packed_doubles(start_s[: detail.seeds, rounds]),
        "xy_m": packed_levels(xy_m - low),
        "origin_m": low.tolist(),
        "extent_m": [*np.min(corners, axis=0).tolist(), *np.max(corners, axis=0).tolist()],
    }
