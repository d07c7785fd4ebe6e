"""A real client that is killed repeatedly, and the server that counts its uploads.

The client opens its ledger, reserves an upload, trains with the operating system's randomness, adds noise, sends its
model and waits for the acknowledgement, in an endless loop. Every child is forked from this process, which has imported
everything, so that it starts within milliseconds. After every kill the ledger is read and compared with what the server
saw.
"""

import contextlib
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fedlane.learning.local import ClientData, train_locally
from fedlane.learning.models import make_model
from fedlane.learning.system_random import system_rows
from fedlane.privacy import Terms
from fedlane.privacy.ledger import ClientLedger, read_accounts
from fedlane.records import MechanismSpec

STAGES = ("open", "reserve", "train", "send", "acknowledge")
RECORDS = 20
SPEC = MechanismSpec.simple(
    np.array([[RECORDS]]), batch_size=10, local_iterations=2, clip_norm=1.0, step_noise=1.0, sampling="poisson"
)
TERMS = Terms("paper", 0.5, 2, 0.0, 1.0, 8.0, 1e-5, 10**6, 0.0)  # not accounted for when the ledger is opened


def serve(listener, seen):
    """Count and acknowledge models that arrive completely."""
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                head = receive(connection, 4)
                if head is None or receive(connection, struct.unpack("<I", head)[0]) is None:
                    break
                seen[0] += 1
                connection.sendall(b"+")


def receive(connection, count):
    """Return exactly ``count`` bytes, or None if the other side closed the connection."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            return None
        data += part
    return data


def training_setup():
    """Return a model, its initial weights and a client's data."""
    model = make_model("mlp", (1, 4, 4), 10)
    images = torch.arange(RECORDS * 16, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8).view(-1, 4, 4, 1)
    labels = torch.nn.functional.one_hot(torch.arange(RECORDS) % 10, 10).float()
    squares = (images.float() / 255).flatten(1).square().sum(1)
    order, start = torch.arange(RECORDS, dtype=torch.int32)[None], torch.zeros(1, 1, dtype=torch.int64)
    return model, model.initial(0)[None], ClientData(images, labels, squares, order, start, torch.tensor([[RECORDS]]))


def trained(model, first, data):
    """Return an upload, trained with samples and noise from the operating system."""
    weights = first.clone()
    train_locally(model, weights, data, system_rows(SPEC, RECORDS), 0.1, 1.0)
    return weights.numpy().tobytes()


def run_client(folder, stage, tools, seen):
    """Run a client that uploads in an endless loop."""
    stage[0] = STAGES.index("open")
    path = folder / "ledger"
    with ClientLedger(path) if path.exists() else ClientLedger.create(path, "client 7") as ledger:
        ledger.open_account("images", TERMS)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / "server"))
            for round in range(10**6):
                stage[0] = STAGES.index("reserve")
                ledger.reserve("images", round, server_count=seen[0])
                stage[0] = STAGES.index("train")
                content = trained(*tools)
                stage[0] = STAGES.index("send")
                connection.sendall(struct.pack("<I", len(content)) + content)
                stage[0] = STAGES.index("acknowledge")
                receive(connection, 1)


def child(work):
    """Fork a child that runs ``work`` and never returns."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(3)
    return pid


def die_at(step):
    """Kill this process just before (even step) or after (odd step) the n-th sync, link, rename or removal."""
    count = 0

    def wrap(function):
        def wrapped(*arguments, **options):
            nonlocal count
            index, count = count, count + 1
            if step == 2 * index:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if step == 2 * index + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    os.fsync, os.link = wrap(os.fsync), wrap(os.link)
    Path.replace, Path.unlink = wrap(Path.replace), wrap(Path.unlink)


def counted(folder):
    """Return the uploads in the ledger; 0 if the client never completed its first line."""
    path = folder / "ledger"
    return read_accounts(path)[1].get("images").uploads if path.exists() and len(path.read_bytes()) > 512 else 0


def three_uploads_s(work, seen):
    """Return the seconds from a client's start to its third upload, which depend on the machine's load."""
    start, before = time.monotonic(), seen[0]
    pid = child(work)
    while seen[0] < before + 3:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return time.monotonic() - start


def kill_repeatedly(folder, kills):
    """Kill a client, and return what was counted.

    Args:
        folder: Folder of its ledger.
        kills: Number of kills at random moments, which continue until every stage was hit; or "steps" to kill before
            and after every write, sync, link and rename.
    """
    tools = training_setup()
    trained(*tools)  # compile once for all children
    shared = memoryview(mmap.mmap(-1, 16)).cast("q")
    seen, stage = shared[:1], shared[1:]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "server"))
        listener.listen(64)
        server = child(lambda: serve(listener, seen))
    try:
        return kill_clients(folder, kills, lambda: run_client(folder, stage, tools, seen), stage, seen)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def kill_clients(folder, kills, client, stage, seen):
    """Start and kill clients; ``stage`` and ``seen`` are shared with them and with the server."""
    chance = random.Random(5)
    stages, worst, killed = dict.fromkeys(STAGES, 0), 0, 0
    uploads_s = 0.0 if kills == "steps" else three_uploads_s(client, seen)
    for number in range(60 if kills == "steps" else 10 * kills):
        if kills != "steps" and number >= kills and min(stages.values()) > 0:
            break
        if kills == "steps":
            if number % 20 == 0:  # start a new ledger, so that its creation is interrupted as well
                for name in ("ledger", "ledger.head", ".ledger.head", "ledger.summary"):
                    (folder / name).unlink(missing_ok=True)
                seen[0] = 0
            pid = child(lambda step=number % 20: (die_at(step), client()))
        else:
            pid = child(client)
            time.sleep(chance.uniform(0.0, uploads_s))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            killed += 1
        stages[STAGES[stage[0]]] += 1
        worst = max(worst, seen[0] - counted(folder))
    return {"killed": killed, "stages": stages, "seen": seen[0], "counted": counted(folder), "under_counted": worst}
