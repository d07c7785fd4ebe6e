"""The network plane: the delay of every client on every channel."""

from fedlane.network.cell import CellNetwork, CellSettings
from fedlane.network.channel import Radio, path_gain_db, rate_bps
from fedlane.network.compute import Compute, ComputeTimes
from fedlane.network.fixed import FixedLinks
from fedlane.network.interface import Network
from fedlane.network.radio import RadioNetwork
from fedlane.network.topology import Topology, place
from fedlane.network.trace_network import TraceNetwork

__all__ = [
    "CellNetwork",
    "CellSettings",
    "Compute",
    "ComputeTimes",
    "FixedLinks",
    "Network",
    "Radio",
    "RadioNetwork",
    "Topology",
    "TraceNetwork",
    "path_gain_db",
    "place",
    "rate_bps",
]
