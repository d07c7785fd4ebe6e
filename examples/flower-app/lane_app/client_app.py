"""The client app: its model and records, with privacy terms from the node's configuration."""

from functools import partial
from pathlib import Path

from flwr.app import Context

from fedlane.flower import LaneClient, lane_app


def make_client(context: Context) -> LaneClient:
    """Create the client of this node.

    Terms and ledger come from the node's configuration, because the run's is written by the person who submits the run.
    """
    from lane_app.task import CLASSES, Net, my_records

    node = context.node_config
    ledger = Path("~/.fedlane/lane-app") / f"client-{node['partition-id']}.ledger"
    return LaneClient(
        model=partial(Net, int(context.run_config["hidden"])),
        data=my_records,
        classes=CLASSES,
        learning_rate=0.3,
        batch_size=64,
        epsilon=float(node.get("epsilon", 8.0)),
        max_uploads=int(node.get("max-uploads", 100)),
        ledger=str(node.get("fedlane-ledger", ledger)),
        create_ledger=True,  # for demonstration data; the owner of real data creates the ledger once, by hand
    )


app = lane_app(make_client)
