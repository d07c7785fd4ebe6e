"""The runner on Ray: one task per batch, with Ray's own queues, retries and resources (extra ``ray``)."""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedlane.experiments.engine.cells import RESULT_VERSION
from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch, one_line
from fedlane.validate import InputError

TIMEOUT_S = 30.0
"""Longest time to wait for a cluster's answer, in seconds."""
MAX_RETRIES = 3
"""Times that Ray starts a task again after its worker or its node was lost."""
MAX_SUBMITTED = 1000
"""Largest number of tasks that are handed to Ray at a time."""
DEFAULT_PORT = 6379
PROBE = """
import sys
try:
    import ray
    ray.init(sys.argv[1], log_to_driver=False)
except Exception as error:
    print(*str(error).split())
    sys.exit(1)
"""
"""A program that joins the cluster at an address and leaves it."""


class RayRunner:
    """Computes batches as Ray tasks of one CPU each; batches that need a GPU get one.

    Args:
        address: Address of a cluster, for example ``10.0.0.1:6379``; None for the local Ray, which is started if none
            is running.
        workers: Largest number of tasks at a time; None for as many as the cluster runs.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address, self.workers = address, workers
        self.retried = 0

    def run(self, batches: Sequence[WorkBatch]) -> Iterator[FinishedBatch]:
        """Compute batches and yield each as it finishes.

        Raises:
            InputError: Ray is not installed, the cluster does not answer or has no GPU, or a node lacks this version of
                FedLane.
        """
        if not batches:
            return
        ray = _imported()
        with _session(ray, self.address, self.workers):
            if any(batch.needs_gpu for batch in batches) and not ray.cluster_resources().get("GPU"):
                raise InputError("--device cuda: the Ray cluster has no GPU")
            yield from self._run_tasks(ray, list(reversed(batches)))

    def _run_tasks(self, ray: Any, waiting: list[WorkBatch]) -> Iterator[FinishedBatch]:
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_task())
        in_flight: dict[Any, WorkBatch] = {}
        limit = self.workers or MAX_SUBMITTED
        try:
            while waiting or in_flight:
                while waiting and len(in_flight) < limit:
                    batch = waiting.pop()
                    sent = json.dumps({"key": batch.key, "function": batch.function, "values": batch.values})
                    options = task.options(num_gpus=1) if batch.needs_gpu else task
                    in_flight[options.remote(sent, _version(), RESULT_VERSION, str(Path.cwd()))] = batch
                done, _ = ray.wait(list(in_flight), num_returns=1)
                for reference in done:
                    batch = in_flight.pop(reference)
                    yield _finished(ray, reference, batch)
        finally:
            for reference in in_flight:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


def _finished(ray: Any, reference: Any, batch: WorkBatch) -> FinishedBatch:
    """Return a task's result. A batch whose workers were lost too often has failed; a wrong node ends the sweep."""
    try:
        refusal, content, error = ray.get(reference)
    except ray.exceptions.RayError as failure:
        lost = isinstance(failure, ray.exceptions.WorkerCrashedError | ray.exceptions.NodeDiedError)
        line = f"its Ray worker died {MAX_RETRIES + 1} times (out of memory?)" if lost else one_line(failure)
        return FinishedBatch(batch.key, None, line)
    if refusal is not None:
        raise InputError(refusal)
    return FinishedBatch(batch.key, content, error)


def _task() -> Callable[[str, str, int, str], tuple[str | None, bytes | None, str | None]]:
    """Return the function that runs on a worker.

    It is defined inside of a function so that Ray sends its code: a function of this module would be imported there,
    and a worker without FedLane could not say what is missing.
    """

    def work(sent: str, version: str, result_version: int, folder: str) -> tuple[str | None, bytes | None, str | None]:
        import json
        import platform
        import sys

        node, remedy = platform.node(), "install the same version on every node"
        try:
            from fedlane import __version__ as installed
        except ImportError:
            return f"Ray node {node} has no FedLane: {remedy} ({version})", None, None
        try:
            from fedlane.experiments.engine.cells import RESULT_VERSION as installed_result
            from fedlane.experiments.engine.work_batches import WorkBatch, attempt
        except ImportError:
            installed_result = 0
        if (installed, installed_result) != (version, result_version):
            other = installed if installed != version else f"{installed} with results of version {installed_result}"
            return f"Ray node {node} has FedLane {other}, this machine has {version}: {remedy}", None, None
        if folder not in sys.path:
            sys.path.append(folder)  # policies and models that are files of the caller's folder
        finished = attempt(WorkBatch(**json.loads(sent)))
        return None, finished.content, finished.error

    return work


def _version() -> str:
    from fedlane import __version__

    return __version__


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install fedlane[ray]") from None
    return ray


@contextlib.contextmanager
def _session(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to Ray, and disconnect at the end; a Ray that was started here is stopped."""
    if ray.is_initialized():  # the caller's own connection stays open
        yield
        return
    options = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
    if address is not None:
        _check_cluster(address)
        ray.init(address, **options)
    else:
        try:
            ray.init("auto", **options)
        except ConnectionError:
            ray.init("local", num_cpus=workers, include_dashboard=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


def _check_cluster(address: str) -> None:
    """Raise `InputError` unless a cluster answers within `TIMEOUT_S`.

    `ray.init` may wait much longer and has no option for it, so a process that can be stopped tries it first.
    """
    started = time.monotonic()
    if address != "auto":
        _check_port(address)
    left = max(1.0, TIMEOUT_S - (time.monotonic() - started))
    try:
        done = subprocess.run([sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        raise InputError(f"--ray-address {address} does not answer as a Ray cluster within {TIMEOUT_S:g} s") from None
    if done.returncode:
        reason = (done.stdout.strip().splitlines() or ["it is not a Ray cluster"])[-1]
        raise InputError(f"--ray-address {address} cannot be joined: {reason}")


def _check_port(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        host, port = port, str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--ray-address must be HOST:PORT, got '{address}'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S).close()
    except OSError as error:
        reason = (
            f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        )
        raise InputError(f"--ray-address {address} does not answer: {reason}") from None
