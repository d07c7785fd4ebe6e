"""The network plane: who can reach whom, and how long it takes."""

from fedlane.network.channel import Radio, path_gain_db, rate_bps
from fedlane.network.compute import Compute
from fedlane.network.fixed import FixedLinks
from fedlane.network.interface import Air
from fedlane.network.radio import AirInterface
from fedlane.network.topology import Topology, place

__all__ = ["Air", "AirInterface", "Compute", "FixedLinks", "Radio", "Topology", "path_gain_db", "place", "rate_bps"]
