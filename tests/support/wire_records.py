"""Records of the protocol between server and client, with every field set; tests name only what matters to them."""

from fedlane.flower.protocol import TRAINED, Introduction, Order, Report


def introduction(name="c0", label_counts=(60.0, 40.0), **changes):
    """Return the introduction of a private client with 100 records that has uploaded nothing."""
    values = {
        "size": 100.0,
        "epsilon": 8.0,
        "delta": 1e-5,
        "max_uploads": 10,
        "uploads": 0,
        "batch_size": 32,
        "local_iterations": 5,
        "upload_noise": 0.5,
    }
    return Introduction(name=name, label_counts=label_counts, **{**values, **changes})


def order(client="c0", **changes):
    """Return an order of round 3 on lane 1."""
    values = {"federation": "f", "round": 3, "lane": 1, "deadline_s": 10.0, "iterations": 5, "server_count": 2}
    return Order(client=client, **{**values, **changes})


def report(client="c0", **changes):
    """Return the report of a client that has trained, in round 3 on lane 1, for its third upload."""
    values = {
        "round": 3,
        "lane": 1,
        "status": TRAINED,
        "reason": "",
        "compute_s": 0.4,
        "switch_s": 0.0,
        "uploads": 3,
        "max_uploads": 140,
        "epsilon": 1.5,
        "delta": 1e-5,
    }
    return Report(client=client, **{**values, **changes})
