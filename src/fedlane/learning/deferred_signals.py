"""Signals that wait while one record is processed, so that an exception in that time comes from the user's module."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Hold back an interrupt (Ctrl-C) and a request to terminate, and yield a function that delivers one that came.

    Only handlers in Python are replaced, because only these raise exceptions. A second signal raises an exception at
    once, so that a module that hangs can be interrupted. Python runs handlers in the main thread; elsewhere there is
    nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    arrived: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if arrived:
            raise KeyboardInterrupt
        arrived.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in replaced:
        signal.signal(number, hold)

    def deliver() -> None:
        if arrived:
            for number, handler in replaced.items():
                signal.signal(number, handler)
            signal.raise_signal(arrived.pop(0))

    try:
        yield deliver
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        deliver()
