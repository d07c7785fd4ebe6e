"""Ctrl-C during a run at the terminal."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

AGAIN = (
    "\nThe run stops after this round and is saved. Press Ctrl-C once more to stop at once; "
    "the rounds since the last checkpoint are then lost.\n"
)
"""Printed at the second Ctrl-C."""
AT_ONCE = 3
"""Number of times that Ctrl-C is pressed to stop a run at once."""


class Interrupts:
    """Delays Ctrl-C until a round has ended and the run is saved. The third Ctrl-C stops at once.

    A context manager. Until `delay` is called, Ctrl-C acts as usual. Threads other than the main one, which receive no
    signals, can use it as well.

    Attributes:
        pressed: How often Ctrl-C has been pressed since `delay` was called.
    """

    def __init__(self) -> None:
        self.pressed = 0
        self._delayed = False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def delay(self) -> None:
        """Delay Ctrl-C from now on, so that no round and no write is cut short."""
        self._delayed = True

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C has been pressed."""
        if self.pressed:
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self._delayed:
            raise KeyboardInterrupt
        self.pressed += 1
        if self.pressed == AT_ONCE - 1:
            with contextlib.suppress(OSError, ValueError):  # not through the stream, which may be in use just now
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, AGAIN.encode())
        if self.pressed >= AT_ONCE:
            raise KeyboardInterrupt
