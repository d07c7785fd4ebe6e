"""The client's side of a Flower federation: private training, the ledger, and switching between lanes."""

from fedlane.flower.client.client import LaneClient, lane_app

__all__ = ["LaneClient", "lane_app"]
