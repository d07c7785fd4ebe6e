"""What a private client with a PyTorch model needs, for `fedlane-supernode --preload fedlane.flower.preload`."""

import contextlib
import importlib

import fedlane.flower.training
import fedlane.flower.weights
import fedlane.privacy.ledger  # noqa: F401

with contextlib.suppress(ImportError):
    importlib.import_module("torch._dynamo")  # which torch.func imports when it is first used: seconds
