"""Runners on this machine: this process, or processes that take batches from a queue."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch, attempt
from fedlane.validate import at_least

ATTEMPTS = 4
"""Times that a batch is started before it counts as failed, because its worker died each time."""
SUSPECT_AFTER = 2
"""Deaths after which a batch is computed with nothing else in flight, to find out which batch kills workers."""
QUEUED_PER_WORKER = 2
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class InProcessRunner:
    """Computes batches in this process, in their order."""

    retried = 0

    def run(self, batches: Sequence[WorkBatch]) -> Iterator[FinishedBatch]:
        """Compute batches and yield each as it finishes."""
        for batch in batches:
            yield attempt(batch)


class ProcessRunner:
    """Computes batches in processes of this machine, each on one thread.

    A worker that dies, for example because the system ran out of memory, is replaced, and the batches that were in
    flight are started again.

    Args:
        workers: Number of processes.
    """

    def __init__(self, workers: int) -> None:
        at_least("workers", workers, 1)
        self.workers = workers
        self.retried = 0

    def run(self, batches: Sequence[WorkBatch]) -> Iterator[FinishedBatch]:
        """Compute batches and yield each as it finishes."""
        deaths: Counter[str] = Counter()
        waiting, suspects = deque(batches), deque[WorkBatch]()
        while waiting or suspects:
            if waiting:
                lost = yield from self._run_pool(waiting, self.workers)
            else:
                lost = yield from self._run_pool(suspects, 1)
            for batch in reversed(lost):
                deaths[batch.key] += 1
                if deaths[batch.key] == ATTEMPTS:
                    yield FinishedBatch(batch.key, None, f"its worker process died {ATTEMPTS} times (out of memory?)")
                    continue
                self.retried += 1
                (waiting if deaths[batch.key] < SUSPECT_AFTER else suspects).appendleft(batch)

    def _run_pool(self, queue: deque[WorkBatch], workers: int) -> Generator[FinishedBatch, None, list[WorkBatch]]:
        """Compute a queue's batches until it is empty or a worker dies; return the batches that were in flight."""
        in_flight: dict[Future[FinishedBatch], WorkBatch] = {}
        limit = 1 if workers == 1 else QUEUED_PER_WORKER * workers
        with _single_threads(), _pool(workers) as executor:
            lost: list[WorkBatch] = []
            while (queue or in_flight) and not lost:
                while queue and len(in_flight) < limit and not lost:
                    batch = queue.popleft()
                    try:
                        in_flight[executor.submit(attempt, batch)] = batch
                    except BrokenProcessPool:
                        lost.append(batch)
                done = wait(in_flight, return_when=FIRST_COMPLETED).done if not lost else set(wait(in_flight).done)
                yield from self._collected(done, in_flight, lost)
            if lost:  # a dead worker ends all other futures, too
                yield from self._collected(set(wait(in_flight).done), in_flight, lost)
        return lost

    @staticmethod
    def _collected(
        done: set[Future[FinishedBatch]], in_flight: dict[Future[FinishedBatch], WorkBatch], lost: list[WorkBatch]
    ) -> Iterator[FinishedBatch]:
        """Yield the results of finished futures, and move the batches of broken ones to ``lost``."""
        for future in done:
            batch = in_flight.pop(future)
            error = future.exception()
            if error is None:
                yield future.result()
            elif isinstance(error, BrokenProcessPool):
                lost.append(batch)
            else:
                raise error


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that is stopped at once, its running batches included, if the caller is interrupted."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield executor
    except BaseException:
        processes = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        raise
    executor.shutdown()


@contextlib.contextmanager
def _single_threads() -> Iterator[None]:
    """Start child processes whose numeric libraries use one thread, unless the user chose a number."""
    added = [name for name in THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: "multiprocessing.process.BaseProcess") -> None:
    parent.join()
    os._exit(1)
