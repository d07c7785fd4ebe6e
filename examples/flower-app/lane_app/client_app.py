"""The client: its own model and records, and terms that are its own, not the run's."""

from functools import partial
from pathlib import Path

from flwr.app import Context

from fedlane.flower import LaneClient, lane_app


def make_client(context: Context) -> LaneClient:
    """The client of this node.

    Terms and ledger come from the node's configuration: whoever submits a run writes the run's.
    """
    from lane_app.task import CLASSES, Net, my_records

    mine = context.node_config
    ledger = Path("~/.fedlane/lane-app") / f"client-{mine['partition-id']}.ledger"
    return LaneClient(
        model=partial(Net, int(context.run_config["hidden"])),
        data=my_records,
        classes=CLASSES,
        learning_rate=0.3,
        batch_size=64,
        epsilon=float(mine.get("epsilon", 8.0)),
        max_uploads=int(mine.get("max-uploads", 100)),
        ledger=str(mine.get("fedlane-ledger", ledger)),
        create_ledger=True,  # these are toy records; a real client's owner makes its ledger once, by hand
    )


app = lane_app(make_client)
