"""A city map that can be checked by hand."""

import numpy as np

from fedlane.city_map import CityMap

WALLS = """
. . . . . . . .
. # # . . # . .
. # # . . # . .
. . . . . # . #
# # # # . # # #
. . . # . . . .
"""
"""Rows from the smallest y to the largest; # is a building. Three cells below the wall are a courtyard."""


def small_city(**changes):
    """A map of 6 x 8 cells of 10 m with two stations; the gain is -(80 + 20 station + row + column / 100) dB."""
    rows = [line.split() for line in WALLS.strip().splitlines()]
    building = np.array([[cell == "#" for cell in row] for row in rows])
    row, column = np.indices(building.shape)
    gain_db = -(80.0 + 20.0 * np.arange(2)[:, None, None] + row + column / 100)
    stations = np.array([[5.0, 5.0, 30.0], [60.0, 40.0, 30.0]])
    values = {"origin_m": np.array([-20.0, 100.0]), "cell_m": 10.0, "station_xyz_m": stations, "name": "small"}
    return CityMap(**{"gain_db": gain_db, "building": building, **values, **changes})
