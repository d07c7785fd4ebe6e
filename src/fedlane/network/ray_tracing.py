"""City maps from ray tracing with Sionna RT (the extra ``city``): buildings, stations, and path gains.

The gains are averages over cells at the height of a phone, of the powers of all paths: line of sight, reflection,
scattering, diffraction at edges and transmission through walls. Antennas have no gain. Rays start in random directions,
so a gain has a Monte Carlo error, which falls with the square root of the number of samples. Rays are traced in passes
with seeds of their own, so that memory stays bounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlane.city_map import MAX_CELLS, CityMap
from fedlane.network.llvm_library import use_llvm
from fedlane.network.tr38901 import CLIENT_HEIGHT_M
from fedlane.records import BoolArray, FloatArray
from fedlane.rng import generator
from fedlane.validate import InputError, missing_extra, printable, unknown

SCATTERING = 0.3
"""Share of the reflected amplitude that walls scatter. Measurements at buildings gave 0.2 to 0.4 (Degli-Esposti et al.,
IEEE Trans. Antennas and Propagation 55(1), 2007)."""
ABOVE_ROOF_M = 3.0
"""Smallest height of an antenna above the roof on which it stands."""
BUILDING_M = 2.0
"""What is higher than this above the ground is a building."""
PASS_SAMPLES = 1_000_000
"""Rays per station that are traced together."""
_POINTS = 4
"""Points per side of a cell at which the height is measured."""
_SMALLEST_GROUND = 0.05
"""Smallest share of a flat scene that lies on the ground."""


@dataclass(frozen=True)
class TracingSettings:
    """How a map is computed.

    Attributes:
        stations: Number of stations, S.
        station_xyz_m: Their positions in metres; None to spread them evenly over the streets.
        height_m: Height of the stations above the ground in metres, where none are given.
        size_m: Side of the square map around the scene's centre in metres; at most the scene.
        cell_m: Side of a cell in metres.
        carrier_hz: Carrier frequency in Hz.
        samples: Rays per station.
        depth: Largest number of reflections, scatterings, diffractions and transmissions on a path.
        seed: Seed of the rays and of the stations' positions.
    """

    stations: int = 4
    station_xyz_m: tuple[tuple[float, float, float], ...] | None = None
    height_m: float = 50.0
    size_m: float = 600.0
    cell_m: float = 5.0
    carrier_hz: float = 3.5e9
    samples: int = 4_000_000
    depth: int = 5
    seed: int = 0

    @property
    def passes(self) -> int:
        """Number of passes in which the rays are traced."""
        return -(-self.samples // PASS_SAMPLES)


class _Ground(NamedTuple):
    """The cells of a map: the first corner, and the heights of what is on them."""

    origin_m: FloatArray
    height_m: FloatArray  # (H, W, points) above the ground; NaN outside the scene

    @property
    def building(self) -> BoolArray:
        """(H, W) whether at least half of a cell is built up or outside the scene."""
        return np.asarray((~(self.height_m <= BUILDING_M)).mean(axis=2) >= 0.5)


def trace_city(
    scene_name: str, settings: TracingSettings, progress: Callable[[int, int], None] = lambda done, passes: None
) -> CityMap:
    """Compute a map.

    Args:
        scene_name: A scene of Sionna RT ("munich", "etoile", "florence", ...), or a Mitsuba XML file.
        settings: How it is computed.
        progress: Called after each pass with the number of passes done and of all passes.

    Raises:
        InputError: Sionna RT or LLVM is missing, there is no such scene, it cannot be read, is not flat, or is smaller
            than a few cells, or a station is outside it or inside a building.
    """
    tracer = _sionna()
    scene, lowest_m = _load_scene(tracer, scene_name)
    ground = _ground(tracer, scene, lowest_m, settings)
    building = ground.building
    if building.mean() > 1 - _SMALLEST_GROUND:
        reason = "hardly anything lies at the level of its lowest point, and only flat ground is mapped"
        raise InputError(f"cannot map the scene {printable(scene_name)}: {reason}")
    places_m = _stations(ground, settings)
    _equip(tracer, scene, places_m + np.array([0.0, 0.0, lowest_m]), settings)
    power = np.zeros((len(places_m), *building.shape))
    for k in range(settings.passes):
        power += _traced(tracer, scene, ground.origin_m, lowest_m, building.shape, settings, k)
        progress(k + 1, settings.passes)
    with np.errstate(divide="ignore"):
        gain_db = 10.0 * np.log10(power / settings.passes)
    return CityMap(
        gain_db=np.where(building, -np.inf, np.round(np.minimum(gain_db, 0.0), 2)),
        building=building,
        origin_m=ground.origin_m,
        cell_m=settings.cell_m,
        station_xyz_m=places_m,
        carrier_hz=settings.carrier_hz,
        name=Path(scene_name).stem,
    )


def _sionna() -> Any:
    """Import Sionna RT with a library of LLVM that it can use."""
    import importlib.util

    if importlib.util.find_spec("sionna") is None:
        raise missing_extra("fedlane city", "city")
    use_llvm()
    try:
        import sionna.rt as tracer
    except (ImportError, RuntimeError) as error:
        line = " ".join(str(error).split())
        raise InputError(f"Sionna RT cannot be loaded: {printable(line)}") from error
    return tracer


def _load_scene(tracer: Any, name: str) -> tuple[Any, float]:
    """Return a scene and the height of its lowest point in metres."""
    scenes = {key: path for key, path in vars(tracer.scene).items() if isinstance(path, str) and path.endswith(".xml")}
    path = scenes.get(name, name)
    if name not in scenes and not Path(name).is_file():
        if Path(name).suffix == ".xml" or "/" in name:
            raise InputError(f"scene {printable(name)} does not exist")
        raise unknown("scene", printable(name), scenes)
    try:
        scene = tracer.load_scene(path)
        lowest_m = float(scene.mi_scene.bbox().min.z)
    except Exception as error:  # Mitsuba and Sionna raise many kinds
        line = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read the scene {printable(name)}: {printable(line)}") from error
    if not np.isfinite(lowest_m):
        raise InputError(f"cannot map the scene {printable(name)}: it is empty")
    return scene, lowest_m


def _ground(tracer: Any, scene: Any, lowest_m: float, settings: TracingSettings) -> _Ground:
    """Measure the heights of a scene by rays from above."""
    import mitsuba as mi

    box = scene.mi_scene.bbox()
    low, high = (np.array([float(end.x), float(end.y)]) for end in (box.min, box.max))
    cells = np.floor(np.minimum(high - low, settings.size_m) / settings.cell_m + 1e-9).astype(np.int64)
    if cells.min() < 2 or cells.prod() > MAX_CELLS:
        width_m, height_m = high - low
        raise InputError(
            f"the map must have at least 2 x 2 and at most {MAX_CELLS:,} cells, got {cells[0]} x {cells[1]}: the scene "
            f"has {width_m:.0f} x {height_m:.0f} m, a cell {settings.cell_m:g} m"
        )
    origin_m = np.round((low + high) / 2.0 - cells * settings.cell_m / 2.0)
    x_m, y_m = (
        origin_m[axis] + settings.cell_m * (np.arange(cells[axis] * _POINTS) + 0.5) / _POINTS for axis in (0, 1)
    )
    x_m, y_m = (grid.ravel().astype(np.float32) for grid in np.meshgrid(x_m, y_m))
    above = mi.Point3f(mi.Float(x_m), mi.Float(y_m), mi.Float(float(box.max.z) + 10.0))
    hit = scene.mi_scene.ray_intersect(mi.Ray3f(above, mi.Vector3f(0.0, 0.0, -1.0)))
    height_m = np.where(np.array(hit.is_valid()), np.array(hit.p.z) - lowest_m, np.nan)
    split = height_m.reshape(cells[1], _POINTS, cells[0], _POINTS).swapaxes(1, 2)
    return _Ground(origin_m, split.reshape(cells[1], cells[0], _POINTS**2))


def _stations(ground: _Ground, settings: TracingSettings) -> FloatArray:
    """Return the stations' positions (S, 3) above the ground: as given, or spread evenly over the streets."""
    building, cell_m = ground.building, settings.cell_m
    if settings.station_xyz_m is not None:
        places_m = np.array(settings.station_xyz_m, np.float64)
    else:
        row, column = np.nonzero(~building)
        middles_m = ground.origin_m + cell_m * (np.stack([column, row], axis=1) + 0.5)
        spread_m = _spread(middles_m, settings.stations, settings.seed)
        places_m = np.column_stack([spread_m, np.full(settings.stations, settings.height_m)])
    column, row = np.floor((places_m[:, :2] - ground.origin_m) / cell_m).astype(np.int64).T
    inside = (column >= 0) & (column < building.shape[1]) & (row >= 0) & (row < building.shape[0])
    if not inside.all():
        x_m, y_m, _ = places_m[~inside][0]
        raise InputError(f"station ({x_m:g}, {y_m:g}) m is outside the map; a larger --size may include it")
    roof_m = np.nanmax(np.nan_to_num(ground.height_m[row, column]), axis=1)
    if settings.station_xyz_m is None:
        places_m[:, 2] = np.maximum(places_m[:, 2], np.where(roof_m > BUILDING_M, roof_m + ABOVE_ROOF_M, 0.0))
    elif (places_m[:, 2] <= roof_m).any():
        k = int(np.argmax(places_m[:, 2] <= roof_m))
        raise InputError(f"station {k} must be higher than {roof_m[k]:.1f} m, the roof there, got {places_m[k, 2]:g}")
    return np.round(places_m, 1)


def _spread(points_m: FloatArray, count: int, seed: int) -> FloatArray:
    """Return ``count`` centres that divide points (P, 2) into compact parts, by Lloyd's algorithm."""
    if count > len(points_m):
        raise InputError(f"--stations must be at most {len(points_m)}, one per cell of the streets, got {count}")
    rng = generator(seed, "stations")
    centres_m = points_m[rng.permutation(len(points_m))[:count]]
    for _ in range(50):
        square = (points_m**2).sum(axis=1)[:, None] - 2.0 * points_m @ centres_m.T + (centres_m**2).sum(axis=1)
        nearest = np.argmin(square, axis=1)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, points_m[:, axis], count) for axis in (0, 1)], axis=1)
        centres_m = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres_m)
    order = np.lexsort((np.round(centres_m[:, 0]), np.round(centres_m[:, 1])))
    return np.asarray(centres_m[order])


def _equip(tracer: Any, scene: Any, places_m: FloatArray, settings: TracingSettings) -> None:
    """Put the stations into a scene, and set its carrier and the scattering of its materials."""
    try:
        scene.frequency = settings.carrier_hz
        for material in scene.radio_materials.values():
            material.scattering_coefficient = SCATTERING
        scene.tx_array = scene.rx_array = tracer.PlanarArray(num_rows=1, num_cols=1, pattern="iso", polarization="V")
        for k, place_m in enumerate(places_m):
            scene.add(tracer.Transmitter(f"station-{k}", position=[float(value) for value in place_m]))
    except (ValueError, RuntimeError) as error:  # a carrier at which a material is not defined
        line = " ".join(str(error).split())[:200]
        raise InputError(f"Sionna RT refuses the scene: {printable(line)}") from error


def _traced(
    tracer: Any,
    scene: Any,
    origin_m: FloatArray,
    lowest_m: float,
    shape: tuple[int, ...],
    settings: TracingSettings,
    number: int,
) -> FloatArray:
    """Return the path gains (S, H, W) of one pass, as power ratios."""
    import mitsuba as mi

    size_m = settings.cell_m * np.array(shape[::-1])
    x_m, y_m = (float(value) for value in origin_m + size_m / 2.0)
    traced = tracer.RadioMapSolver()(
        scene,
        center=mi.Point3f(x_m, y_m, lowest_m + CLIENT_HEIGHT_M),
        orientation=mi.Point3f(0.0, 0.0, 0.0),
        size=mi.Point2f(float(size_m[0]), float(size_m[1])),
        cell_size=mi.Point2f(settings.cell_m, settings.cell_m),
        samples_per_tx=-(-settings.samples // settings.passes),
        max_depth=settings.depth,
        diffuse_reflection=True,
        diffraction=True,
        seed=1000 * settings.seed + number,
    )
    return np.asarray(np.array(traced.path_gain), np.float64)
