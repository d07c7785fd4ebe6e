"""A testbed's client, which trains the perceptron on its share of the embedded images, without privacy."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlane.flower.client.reply import BudgetReport, client_name, hello_reply, order_reply
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
    """Introduce the client, with its label counts."""
    client, counts = int(context.node_config["partition-id"]), _label_counts(context)

    def introduction() -> Introduction:
        name, size = client_name(None, context), float(counts[client].sum())
        return Introduction.without_budget(name, size, counts[client], BATCH_SIZE, ITERATIONS)

    return hello_reply(message, FEDERATION, introduction)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for an order. The testbed has already switched the lane, at both ends of the link."""

    def work(order: Order, budget: BudgetReport) -> RecordDict:
        client, counts = int(context.node_config["partition-id"]), _label_counts(context)
        samples = load_dataset(DATASET).train
        begin = int(counts[:client].sum())
        indices = assign_samples(counts, samples.labels, int(context.run_config["seed"]))[
            begin : begin + int(counts[client].sum())
        ]
        weights = {
            name: np.asarray(array.numpy(), np.float32)
            for name, array in message.content.array_records["arrays"].items()
        }
        trained = perceptron.train(
            weights,
            perceptron.inputs_of(samples.images[indices]),
            samples.labels[indices],
            iterations=order.iterations,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            rng=generator(int(context.run_config["seed"]), f"local-{client}", order.round),
        )
        return RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in trained.items()}),
                "metrics": MetricRecord({"num-examples": len(indices)}),
            }
        )

    return order_reply(
        message,
        name=client_name(None, context),
        iterations=ITERATIONS,
        federation=FEDERATION,
        switch=NoSwitch(),
        work=work,
    )


def _label_counts(context: Context) -> IntArray:
    """Return the label counts (U, M) of all clients, the same as in a simulation of the same scenario."""
    config = context.run_config
    return label_counts(PARTITION, dataset_info(DATASET).class_totals, int(config["clients"]), int(config["seed"]))
