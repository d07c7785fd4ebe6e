"""A real client with 300 small images, the messages that it receives and the replies that it sends."""

import time

import numpy as np
import torch._dynamo  # noqa: F401 - PyTorch does it at the first gradient per record, in the middle of a test
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict

from fedlane.flower import LaneClient
from fedlane.flower.client.weights import first_arrays
from fedlane.flower.protocol import KEY, Order, Report
from fedlane.privacy.ledger import read_accounts

COUNTS = (150, 100, 50)
SHAPE = (1, 4, 4)


def records(context=None):
    """Return 300 small images of three classes."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), COUNTS)
    images = rng.integers(0, 200, (300, *SHAPE), dtype=np.uint8)
    images[np.arange(300), 0, 0, labels] = 255
    return images, labels


def make_client(folder, **changes):
    """Return client anna, whose ledger is in a folder; every step takes all records, so that calibration is quick."""
    settings = {
        "model": "softmax",
        "data": records,
        "classes": 3,
        "learning_rate": 0.1,
        "epsilon": 8.0,
        "max_uploads": 3,
        "batch_size": 300,
        "local_iterations": 2,
        "ledger": folder / "ledger",
        "name": "anna",
    }
    return LaneClient(**{**settings, **changes})


def context(**node_config):
    """Return the context of a node."""
    return Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={})


def message(kind, **content):
    """Return a message as a client receives it, with the metadata that Flower fills in."""
    metadata = Metadata(1, "some id", 1, 7, "", "", time.time(), 60.0, kind)
    return Message(content=RecordDict(content), metadata=metadata)


def order(arrays=None, **changes):
    """Return an order for client anna, with a model."""
    values = {"federation": "f", "client": "anna", "round": 4, "lane": 1, "deadline_s": 10.0, "iterations": 2}
    an_order = Order(**{"server_count": 0, **values, **changes})
    arrays = first_arrays("softmax", SHAPE, 3) if arrays is None else arrays
    return message("train", arrays=arrays, config=ConfigRecord({"lr": 1.0}), **{KEY: an_order.record()})


def reply_of(client, request, node=None):
    """Return a client's reply to a message."""
    return client.app()(request, node or context())


def report_of(reply):
    """Return the report in a reply."""
    assert not reply.has_error(), reply.error
    return Report.read(reply.content)


def uploads_on_disk(path):
    """Return the uploads that a ledger counts, by data set."""
    return {name: account.uploads for name, account in read_accounts(path)[1].items()}
