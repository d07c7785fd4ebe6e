"""The one round, which simulation, Flower's server, Gymnasium and `check_policy` drive.

orders  = rounds.decide(present)      the policy's choice, checked
rounds.start(orders)                  charged; nothing is sent before this returns
outcome = rounds.settle(arrivals)     how long the round took, who was on time, queues; the policy learns
"""

from fedlane.rounds.check import check_policy
from fedlane.rounds.rounds import Arrivals, Orders, Outcome, PolicyError, Rounds, World

__all__ = ["Arrivals", "Orders", "Outcome", "PolicyError", "Rounds", "World", "check_policy"]
