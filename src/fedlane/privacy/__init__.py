"""The privacy plane: what each upload costs its client."""

from fedlane.privacy.accountant import Spent, Terms, epsilon_curve, spent
from fedlane.privacy.calibrate import account, calibrate
from fedlane.privacy.mechanism import make_mechanism, released_histogram

__all__ = [
    "Spent",
    "Terms",
    "account",
    "calibrate",
    "epsilon_curve",
    "make_mechanism",
    "released_histogram",
    "spent",
]
