"""The tables that only some worlds have: where clients moved, and the city that they moved in."""

from functools import partial

from fedlane.network import Network
from fedlane.records import FloatArray
from fedlane.simulation.coverage import coverage_parts
from fedlane.simulation.movement import has_movement, position_parts
from fedlane.simulation.table_parts import Parts


def world_tables(network: Network, delay_s: FloatArray, planned: int) -> dict[str, Parts]:
    """Return what makes each table when it is needed, by the table's name.

    Args:
        network: The network.
        delay_s: (R, T) durations of the rounds so far, in seconds.
        planned: Rounds of the whole run.
    """
    tables: dict[str, Parts] = {}
    if has_movement(network):
        tables["positions"] = partial(position_parts, network, delay_s, planned)
    if network.city is not None:
        tables["coverage"] = partial(coverage_parts, network.city)
    return tables
