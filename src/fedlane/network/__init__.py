"""The network plane: the delay of every client on every channel."""

from fedlane.network.channel import Radio, path_gain_db, rate_bps
from fedlane.network.compute import Compute
from fedlane.network.fixed import FixedLinks
from fedlane.network.interface import Network
from fedlane.network.radio import RadioNetwork
from fedlane.network.topology import Topology, place

__all__ = ["Compute", "FixedLinks", "Network", "Radio", "RadioNetwork", "Topology", "path_gain_db", "place", "rate_bps"]
