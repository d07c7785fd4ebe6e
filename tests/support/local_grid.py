"""A Flower grid in this process whose nodes are functions: whole federations without a network."""

import threading

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fedlane.flower import LaneStrategy
from fedlane.flower.protocol import KEY, Order
from support.wire_records import introduction, report

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
            facts = {"size": self.size, "epsilon": self.epsilon, "max_uploads": self.limit}
            facts |= {"batch_size": 8, "local_iterations": 2}
            known = introduction(self.name, uploads=len(self.orders), upload_noise=0.1, **facts)
            return RecordDict({KEY: known.record()})
        if message.metadata.message_type == MessageType.EVALUATE:
            return RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 0.5})})
        order = Order.read(message.content)
        assert order.client == self.name
        assert order.server_count <= len(self.orders)
        self.orders.append(order)
        uploads = len(self.orders)
        counts = {"uploads": uploads, "max_uploads": self.limit, "epsilon": 0.1 * uploads}
        done = report(self.name, round=order.round, lane=order.lane, compute_s=0.01, **counts)
        weights = {name: self.train(array.numpy()) for name, array in message.content["arrays"].items()}
        return RecordDict(
            {
                KEY: done.record(),
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
    asked = Message(RecordDict({}), dst_node_id=1, message_type=MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = "1"
    content = {
        KEY: report(client, round=0, lane=0, uploads=1).record(),
        "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
        "metrics": MetricRecord({"num-examples": examples, **metrics}),
    }
    return Message(RecordDict(content), reply_to=asked)
