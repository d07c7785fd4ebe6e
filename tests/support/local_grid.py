"""A Flower grid in this process whose nodes are functions: whole federations without a network."""

import threading

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fedlane.flower import LaneStrategy
from fedlane.flower.protocol import KEY, Introduction, Order, Report

ARRAYS = ArrayRecord({"w": Array(np.zeros(5, np.float32))})


class Node:
    """An honest client: adds 1 to every weight and counts its uploads."""

    def __init__(self, name, limit=50, epsilon=10.0, size=100.0):
        self.name, self.limit, self.epsilon, self.size = name, limit, epsilon, size
        self.orders = []

    def train(self, weights):
        """Return the new weights."""
        return weights + np.float32(1)

    def __call__(self, message):
        if message.metadata.message_type == MessageType.QUERY:
            introduction = Introduction(
                self.name, self.size, (60.0, 40.0), self.epsilon, 1e-5, self.limit, len(self.orders), 8, 2, 0.1
            )
            return RecordDict({KEY: introduction.record()})
        if message.metadata.message_type == MessageType.EVALUATE:
            return RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 0.5})})
        order = Order.read(message.content)
        assert order.client == self.name
        assert order.server_count <= len(self.orders)
        self.orders.append(order)
        uploads = len(self.orders)
        report = Report(
            self.name, order.round, order.lane, "trained", "", 0.01, 0.0, uploads, self.limit, 0.1 * uploads, 1e-5
        )
        weights = {name: self.train(array.numpy()) for name, array in message.content["arrays"].items()}
        return RecordDict(
            {
                KEY: report.record(),
                "arrays": ArrayRecord({name: Array(array) for name, array in weights.items()}),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )


class LocalGrid:
    """A grid in this process; a node that returns None does not answer."""

    def __init__(self, *nodes):
        self.nodes = dict(enumerate(nodes, 100))
        self.replies, self.lock, self.count = {}, threading.Lock(), 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            answer = self.nodes[message.metadata.dst_node_id](message)
            if answer is not None:
                with self.lock:
                    self.replies[str(self.count)] = Message(answer, reply_to=message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        with self.lock:
            return [self.replies.pop(key) for key in list(message_ids) if key in self.replies]


def strategy(folder, inner=None, **settings):
    """Return a strategy for two lanes, with settings replaced."""
    values = {"lanes": 2, "deadline_s": 60.0, "state_dir": folder, **settings}
    return LaneStrategy(inner, **values)


def reply(client, arrays, examples=100.0, **metrics):
    """Return a client's answer to the order of round 0 on lane 0."""
    report = Report(client, 0, 0, "trained", "", 0.1, 0.0, 1, 50, 0.1, 1e-5)
    asked = Message(RecordDict({}), dst_node_id=1, message_type=MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = "1"
    content = {
        KEY: report.record(),
        "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
        "metrics": MetricRecord({"num-examples": examples, **metrics}),
    }
    return Message(RecordDict(content), reply_to=asked)
