"""A testbed's client: trains the perceptron on its part of the embedded images. No privacy: this measures links."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.client.reply import BudgetReport, answer_hello, answer_order, client_name
from fedlane.flower.client.switch import NoSwitch
from fedlane.flower.protocol import Introduction, Order
from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.spec import FEDERATION
from fedlane.learning.datasets import dataset_info, load_dataset
from fedlane.learning.partition import Partition, assign_samples, label_counts
from fedlane.records import IntArray
from fedlane.rng import generator

DATASET, PARTITION = "fashion-mnist-mini", Partition("dominant", 0.8, 0.0)
ITERATIONS, BATCH_SIZE, LEARNING_RATE = 5, 32, 0.1

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say who this is, and what it holds."""
    client, counts = int(context.node_config["partition-id"]), _counts(context)

    def introduction() -> Introduction:
        return Introduction(
            name=client_name(None, context),
            size=float(counts[client].sum()),
            label_counts=tuple(float(count) for count in counts[client]),
            epsilon=0.0,
            delta=0.0,
            max_uploads=0,
            uploads=0,
            batch_size=BATCH_SIZE,
            local_iterations=ITERATIONS,
            upload_noise=0.0,
        )

    return answer_hello(message, FEDERATION, introduction)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as ordered. The testbed has switched the lane at both ends already."""

    def work(order: Order, spending: BudgetReport) -> RecordDict:
        client, counts = int(context.node_config["partition-id"]), _counts(context)
        samples = load_dataset(DATASET).train
        begin = int(counts[:client].sum())
        mine = assign_samples(counts, samples.labels, int(context.run_config["seed"]))[
            begin : begin + int(counts[client].sum())
        ]
        weights = {
            name: np.asarray(array.numpy(), np.float32)
            for name, array in message.content.array_records["arrays"].items()
        }
        trained = perceptron.train(
            weights,
            perceptron.inputs_of(samples.images[mine]),
            samples.labels[mine],
            iterations=order.iterations,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            rng=generator(int(context.run_config["seed"]), f"local-{client}", order.round),
        )
        return RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in trained.items()}),
                "metrics": MetricRecord({"num-examples": len(mine)}),
            }
        )

    return answer_order(
        message,
        name=client_name(None, context),
        iterations=ITERATIONS,
        federation=FEDERATION,
        switch=NoSwitch(),
        work=work,
    )


def _counts(context: Context) -> IntArray:
    """(U, M): who holds how many of what; the same as in the simulation of the same scenario."""
    config = context.run_config
    return label_counts(PARTITION, dataset_info(DATASET).class_totals, int(config["clients"]), int(config["seed"]))
