"""The privacy plane: what each upload costs its client."""

from fedlane.privacy.mechanism import make_mechanism, paper_sigma

__all__ = ["make_mechanism", "paper_sigma"]
