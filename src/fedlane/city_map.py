"""City maps: path gains of base stations over a grid of cells, and which cells are buildings.

A map is an npz file with the arrays ``gain_db`` (S, H, W), ``building`` (H, W), ``origin_m`` (2,), ``cell_m`` and
``station_xyz_m`` (S, 3), and, where it is known, ``carrier_hz``. The command `fedlane city` makes one. Maps come from
strangers: nothing is unpickled, and every array is checked before it is used.
"""

import contextlib
import importlib.resources
import io
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.files import READ_ERRORS, load_arrays, write_atomically
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError, printable, unknown

MAX_ENTRIES, MAX_CELLS = 2**25, 2**20
"""Largest number of gains and of cells in a map: 32 stations over a square kilometre at 1 m."""
_SHIPPED = importlib.resources.files("fedlane").joinpath("data", "maps")


@dataclass(frozen=True, eq=False)
class CityMap:
    """The path gains of S stations over H x W square cells.

    Row k and column l cover the square from (x0 + l c, y0 + k c) to (x0 + (l + 1) c, y0 + (k + 1) c), where (x0, y0) is
    ``origin_m`` and c is ``cell_m``. Channel j belongs to station j mod S.

    Attributes:
        gain_db: (S, H, W) path gains in dB; -inf where nothing arrives.
        building: (H, W) whether a cell belongs to a building, where nobody walks.
        origin_m: (2,) x and y of the corner with the smallest coordinates, in metres.
        cell_m: Side of a cell in metres.
        station_xyz_m: (S, 3) positions of the stations in metres.
        carrier_hz: Carrier frequency of the gains in Hz; None if the map does not state it.
        name: How messages call the map.

    Raises:
        InputError: An array has the wrong shape, type or values.

    Examples:
        >>> munich = CityMap.load("munich")
        >>> munich.stations, munich.building.shape == munich.gain_db.shape[1:]
        (4, True)
    """

    gain_db: FloatArray
    building: BoolArray
    origin_m: FloatArray
    cell_m: float
    station_xyz_m: FloatArray
    carrier_hz: float | None = None
    name: str = "map"

    def __post_init__(self) -> None:
        for reason in _faults(self):
            raise InputError(f"cannot use the city map {printable(self.name)}: {reason}")

    @property
    def stations(self) -> int:
        """Number of stations, S."""
        return len(self.station_xyz_m)

    @property
    def size_m(self) -> tuple[float, float]:
        """Width and height of the map in metres."""
        height, width = self.building.shape
        return width * self.cell_m, height * self.cell_m

    @cached_property
    def streets(self) -> BoolArray:
        """(H, W) the cells on which people walk: the largest connected area that is not built up."""
        from scipy.ndimage import label

        areas, count = label(~self.building)
        return np.asarray(areas == 1 + np.argmax(np.bincount(areas.ravel(), minlength=count + 1)[1:]))

    def cell(self, xy_m: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the rows and columns of positions (..., 2) in metres.

        Raises:
            InputError: A position is outside the map.
        """
        column, row = np.moveaxis(np.floor((xy_m - self.origin_m) / self.cell_m).astype(np.int64), -1, 0)
        height, width = self.building.shape
        outside = (column < 0) | (column >= width) | (row < 0) | (row >= height)
        if outside.any():
            x_m, y_m = xy_m[outside][0]
            raise InputError(f"position ({x_m:g}, {y_m:g}) m is outside the city map {printable(self.name)}")
        return row, column

    def centre_m(self, row: IntArray, column: IntArray) -> FloatArray:
        """Return the centres (..., 2) of cells in metres."""
        return self.origin_m + self.cell_m * (np.stack([column, row], axis=-1) + 0.5)

    @classmethod
    def load(cls, source: str) -> "CityMap":
        """Load a shipped map by its name, or a file, here or in the folder FEDLANE_DATA.

        Args:
            source: Name of a map of the package (see `shipped_maps`), or an npz file.

        Raises:
            InputError: There is no such map, or it is not one.
        """
        path = _find(source)
        return _loaded(path, source, path.stat().st_mtime_ns)

    def to_bytes(self) -> bytes:
        """Return the map as the content of an npz file; equal maps have equal bytes."""
        buffer = io.BytesIO()
        carrier: dict[str, Any] = {} if self.carrier_hz is None else {"carrier_hz": np.float64(self.carrier_hz)}
        np.savez_compressed(
            buffer,
            gain_db=self.gain_db.astype(np.float32),
            building=self.building,
            origin_m=self.origin_m,
            cell_m=np.float64(self.cell_m),
            station_xyz_m=self.station_xyz_m,
            **carrier,
        )
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write the map as an npz file, atomically.

        Raises:
            OSError: The file cannot be written.
        """
        write_atomically(path, self.to_bytes())


def shipped_maps() -> list[str]:
    """Return the names of the maps in the package."""
    return sorted(file.name.removesuffix(".npz") for file in _SHIPPED.iterdir() if file.name.endswith(".npz"))


def _find(source: str) -> Path:
    """Return the path of a map's file; a shipped map's name comes first."""
    if source in shipped_maps():
        return Path(str(_SHIPPED.joinpath(f"{source}.npz")))
    roots = [Path()]
    if os.environ.get("FEDLANE_DATA"):
        roots += [Path(os.environ["FEDLANE_DATA"]), Path(os.environ["FEDLANE_DATA"]) / "maps"]
    for root in roots if source else []:
        with contextlib.suppress(OSError, ValueError):  # a name that is too long, or with a null character
            if (root / source).is_file():
                return root / source
    if Path(source).suffix == ".npz" or "/" in source:
        raise InputError(f"city map {printable(source)} does not exist, here or in the folder FEDLANE_DATA")
    raise unknown("city map", printable(source), shipped_maps())


@lru_cache(maxsize=4)
def _loaded(path: Path, name: str, _modified: int) -> CityMap:
    """Read and check a map; the time of its file's last change makes a rewritten file be read again."""
    try:
        arrays = load_arrays(path)
    except READ_ERRORS as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise InputError(f"cannot read the city map {printable(name)}: {printable(reason)}") from error
    needed = ("gain_db", "building", "origin_m", "cell_m", "station_xyz_m")
    absent = [key for key in needed if key not in arrays]
    if absent:
        raise InputError(f"cannot use the city map {printable(name)}: it has no array {absent[0]}")
    numbers = {key: _numbers(name, key, arrays[key]) for key in (*needed, "carrier_hz") if key in arrays}
    scalars = {key: _scalar(name, key, numbers[key]) for key in ("cell_m", "carrier_hz") if key in numbers}
    building = numbers["building"]
    if not np.isin(building, (0.0, 1.0)).all():
        raise InputError(f"cannot use the city map {printable(name)}: building must be booleans, 0 or 1")
    return CityMap(
        gain_db=numbers["gain_db"],
        building=building.astype(bool),
        origin_m=numbers["origin_m"],
        cell_m=scalars["cell_m"],
        station_xyz_m=numbers["station_xyz_m"],
        carrier_hz=scalars.get("carrier_hz"),
        name=name,
    )


def _numbers(name: str, key: str, array: NDArray[Any]) -> FloatArray:
    """Return an array of booleans, integers or floats as floats; any other type is refused."""
    if array.dtype.kind not in "biuf" or array.size > MAX_ENTRIES:
        reason = f"must be at most {MAX_ENTRIES:,} numbers, got {array.dtype} {array.shape}"
        raise InputError(f"cannot use the city map {printable(name)}: {key} {reason}")
    with np.errstate(over="ignore"):  # of long doubles
        return np.ascontiguousarray(array, np.float64)


def _scalar(name: str, key: str, array: FloatArray) -> float:
    """Return the only number of an array."""
    if array.size != 1:
        raise InputError(f"cannot use the city map {printable(name)}: {key} must be one number, got {array.shape}")
    return float(array.item())


def _faults(city: CityMap) -> list[str]:
    """Return what is wrong with a map's arrays, the first fault only; empty if nothing is."""
    gain, stations = city.gain_db, city.station_xyz_m
    if gain.ndim != 3 or not gain.size or gain.shape[1:] != city.building.shape:
        return [
            f"gain_db must be stations x rows x columns, with building's rows and columns, got {gain.shape} "
            f"and {city.building.shape}"
        ]
    if city.building.size > MAX_CELLS:
        return [f"it has {city.building.size:,} cells, at most {MAX_CELLS:,} are read"]
    if stations.shape != (len(gain), 3):
        return [f"station_xyz_m must be ({len(gain)}, 3), one row per station, got {stations.shape}"]
    if city.origin_m.shape != (2,):
        return [f"origin_m must be two numbers, got {city.origin_m.shape}"]
    if not 0.01 <= city.cell_m <= 1e5:
        return [f"cell_m must be from 0.01 to 100000, got {city.cell_m:g}"]
    if not (np.abs(np.append(stations, city.origin_m)) <= 1e7).all():
        return ["station_xyz_m and origin_m must be coordinates from -1e7 to 1e7"]
    if not (gain <= 0).all():  # false for NaN
        return ["gain_db must be at most 0 everywhere (-inf where nothing arrives)"]
    if city.carrier_hz is not None and not 1e6 <= city.carrier_hz <= 1e13:
        return [f"carrier_hz must be from 1e6 to 1e13, got {city.carrier_hz:g}"]
    if city.building.all():
        return ["every cell is a building, so nobody can walk"]
    return []
