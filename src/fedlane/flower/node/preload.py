"""The imports of a private PyTorch client, for `fedlane-supernode --preload fedlane.flower.node.preload`."""

import contextlib
import importlib

import fedlane.flower.client.training
import fedlane.flower.client.weights
import fedlane.privacy.ledger  # noqa: F401

with contextlib.suppress(ImportError):
    importlib.import_module("torch._dynamo")  # torch.func imports it on first use, which takes seconds
