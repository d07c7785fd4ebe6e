"""The privacy plane: mechanisms, calibration, accounting and ledgers."""

from fedlane.privacy.accountant import Spent, Terms, account, epsilon_curve, spent
from fedlane.privacy.calibrate import calibrate
from fedlane.privacy.delta_choice import delta_remark
from fedlane.privacy.mechanism import make_mechanism, released_histogram
from fedlane.privacy.mechanisms import mechanism_of

__all__ = [
    "Spent",
    "Terms",
    "account",
    "calibrate",
    "delta_remark",
    "epsilon_curve",
    "make_mechanism",
    "mechanism_of",
    "released_histogram",
    "spent",
]
