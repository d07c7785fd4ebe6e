"""A clock for programs of several threads that moves on only when all of them sleep.

Exactly one thread runs at any time: the one whose sleep ends first, and of several the one that fell asleep first. So
a federation that waits, polls and times out takes no time, and gives the same result on every machine.
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from unittest import mock


class Crash(BaseException):
    """The process dies: no handler of the program may stop it."""


class VirtualTime:
    """Replaces `time` and `threading` in every loaded module whose name begins with ``package``, as a context.

    At its end all threads that were started in it end too, as those of a process that dies.
    """

    crash_at_s = math.inf
    """When the main thread dies: `Crash` is raised where it waits."""

    def __init__(self, package: str) -> None:
        self.now_s, self.package = 0.0, package
        self._turn = threading.Condition()
        self._asleep: dict[object, float] = {}
        self._running = 1
        self._ended = False
        self._threads: list[threading.Thread] = []
        self._patches = ExitStack()

    def __enter__(self) -> "VirtualTime":
        clock = self

        class Event:
            def __init__(self) -> None:
                self._flag, self._waiting = False, list[object]()

            def is_set(self) -> bool:
                return self._flag

            def set(self) -> None:
                self._flag = True
                for sleeper in self._waiting:
                    clock._wake(sleeper)

            def wait(self, timeout: float | None = None) -> bool:
                if not self._flag:
                    sleeper = object()
                    self._waiting.append(sleeper)
                    clock._sleep(math.inf if timeout is None else timeout, sleeper)
                    self._waiting.remove(sleeper)
                return self._flag

        class Thread(threading.Thread):
            def start(self) -> None:
                sleeper = object()
                clock._running += 1
                clock._asleep[sleeper] = clock.now_s
                self.run = clock._in_turn(self.run, sleeper)
                clock._threads.append(self)
                super().start()

        virtual = {
            time: {"monotonic": lambda: clock.now_s, "sleep": lambda seconds: clock._sleep(seconds, object())},
            threading: {"Event": Event, "Thread": Thread},
        }
        for name, module in list(sys.modules.items()):
            if name.startswith(self.package):
                for library, replaced in virtual.items():
                    self._replace(module, library, replaced)
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()
        with self._turn:
            self._ended = True
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()

    def _replace(self, module: ModuleType, library: ModuleType, replaced: dict[str, object]) -> None:
        name = library.__name__
        if getattr(module, name, None) is library:
            changed = SimpleNamespace(**{**vars(library), **replaced})
            self._patches.enter_context(mock.patch.object(module, name, changed))

    def _in_turn(self, run: Callable[[], None], sleeper: object) -> Callable[[], None]:
        def turn() -> None:
            try:
                self._await(sleeper)
                run()
            except SystemExit:
                pass
            finally:
                self._running -= 1
                self._next()

        return turn

    def _sleep(self, seconds: float, sleeper: object) -> None:
        self._asleep[sleeper] = self.now_s + max(seconds, 0.0)
        self._next()
        self._await(sleeper)
        if self.now_s >= self.crash_at_s and threading.current_thread() is threading.main_thread():
            raise Crash

    def _wake(self, sleeper: object) -> None:
        """End a sleep; its thread goes on when it is its turn."""
        if sleeper in self._asleep:
            self._asleep[sleeper] = self.now_s

    def _next(self) -> None:
        """Let the thread whose sleep ends first go on, if all sleep."""
        with self._turn:
            if self._asleep and len(self._asleep) == self._running:
                sleeper = min(self._asleep, key=self._asleep.__getitem__)  # of several, the first that fell asleep
                self.now_s = max(self.now_s, self._asleep.pop(sleeper))
                assert self.now_s < math.inf, "all threads wait for each other"
                self._turn.notify_all()

    def _await(self, sleeper: object) -> None:
        with self._turn:
            while sleeper in self._asleep and not self._ended:
                self._turn.wait()
            if self._ended:
                raise SystemExit
