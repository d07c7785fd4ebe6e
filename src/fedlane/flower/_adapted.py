"""The one place that reaches into Flower: how replies are claimed and fetched, and how often a node looks for work.

Flower's `HttpGrid.pull_messages` claims replies once their headers are there, then fetches one after the other, two
objects at a time, and asks for one that is missing again after 1, 2, 4, 8, 10, 10 ... s; it has no argument for it.
Here its two halves run apart: headers are claimed for all messages in one question, and each claimed reply is fetched
on its own by the same code with another `pull_objects`, which fetches what is there and soon asks again for what is
not. Flower itself is not changed.

Flower's SuperNode sleeps for 3 s where there is no work. Its ClientApp is started while the model is still on its way,
and looks for it again after 1, 2, 4, 8, 10, 10 ... s: a model that took 8 s may be seen after 15. Neither has an option
for it; `look_every` and `look_for_the_model_every`, for processes that are nothing but those, shorten both.

Only versions that this was tested with are treated so; with others, and other grids, all is as Flower has it.
"""

import functools
import inspect
import logging
import math
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flwr
from flwr.app import Message
from flwr.serverapp import Grid

logger = logging.getLogger("fedlane.flower")

TESTED = ("1.41",)
"""Versions of flwr whose code was read and tested."""
WAIT_S = 0.02
"""Between two rounds of questions for objects that are not there yet."""
MISSES = 3
"""Questions in vain before the next wait: objects come one after the other, and SuperLink has other work to do."""
MOST_S = 7200.0
"""Flower's own limit for the whole of a reply."""


class _Fetching(threading.local):
    """The reply that this thread fetches: what Flower's code between `_only` and `fetch_objects` does not pass on."""

    at_s: float | None = None
    until_s = math.inf
    most_bytes = math.inf


_fetching = _Fetching()


@dataclass(frozen=True)
class ReplyClaim:
    """A reply whose header is there. Nobody else can have it."""

    reply_to: str
    """The id of the message that it answers."""
    fetch: Callable[[float, float], tuple[Message, float]]
    """The whole reply, and when the last of it was here (`time.monotonic`); blocks until it is.

    Called with when to give up and how many bytes a reply may have; with other grids than Flower's own both are moot.
    """


def claim(grid: Grid, message_ids: Sequence[str]) -> list[ReplyClaim]:
    """The replies to these messages that are there, or have begun to arrive."""
    from flwr.proto import runtime_pb2
    from flwr.superlink.grid import http_grid

    adapted = None
    if isinstance(grid, http_grid.HttpGrid):
        adapted = _adapted(http_grid.HttpGrid.pull_messages, http_grid.__dict__.get("pull_objects"))
    if adapted is None:
        return [
            ReplyClaim(m.metadata.reply_to_message_id, functools.partial(_same, m))
            for m in grid.pull_messages(message_ids)
        ]
    client: Any = grid._runtime_client  # type: ignore[attr-defined]
    answer = client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=message_ids))
    claims = []
    for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        one = runtime_pb2.PullAppMessagesResponse(messages_list=[header], message_object_trees=[tree])
        seen = types.SimpleNamespace(_run=grid.run, node=grid.node, _runtime_client=_Claimed(client, one))  # type: ignore[attr-defined]
        claims.append(ReplyClaim(header.metadata.reply_to_message_id, functools.partial(_only, adapted, seen)))
    return claims


class _Claimed:
    """Flower's client of the Runtime API, after one header was claimed."""

    def __init__(self, client: Any, answer: Any) -> None:
        self._client, self._answer = client, answer

    def PullMessages(self, request: Any) -> Any:
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _same(message: Message, until_s: float, most_bytes: float) -> tuple[Message, float]:
    return message, time.monotonic()


def _only(
    pull_messages: Callable[..., Iterable[Message]], seen: object, until_s: float, most_bytes: float
) -> tuple[Message, float]:
    _fetching.at_s, _fetching.until_s, _fetching.most_bytes = None, until_s, most_bytes
    (message,) = pull_messages(seen, [])
    return message, time.monotonic() if _fetching.at_s is None else _fetching.at_s


@functools.cache
def _adapted(
    pull_messages: Callable[..., Iterable[Message]], pull_objects: Callable[..., dict[str, bytes]] | None
) -> Callable[..., Iterable[Message]] | None:
    """The same function with another `pull_objects`; None, with a warning, where Flower is another."""
    known = _known() and isinstance(pull_messages, types.FunctionType)
    fits = _takes(pull_objects, "object_ids", "pull_object_fn")
    if not (known and fits and {"pull_objects", "PullMessages"} <= set(pull_messages.__code__.co_names)):
        _warn(
            "replies are asked for with Flower's own waits, so that arrivals may be stamped seconds late (deadlines "
            "hold all the same)"
        )
        return None
    return types.FunctionType(
        pull_messages.__code__,
        {**pull_messages.__globals__, "pull_objects": fetch_objects},
        pull_messages.__name__,
        pull_messages.__defaults__,
        pull_messages.__closure__,
    )


def _known() -> bool:
    return flwr.__version__.rpartition(".")[0] in TESTED


def _takes(function: Callable[..., object] | None, *names: str) -> bool:
    return function is not None and set(names) <= set(inspect.signature(function).parameters)


def _warn(consequence: str) -> None:
    tested = ", ".join(f"{version}.x" for version in TESTED)
    logger.warning("flwr %s is not as the tested %s: %s", flwr.__version__, tested, consequence)


def look_every(seconds: float) -> bool:
    """Let this process's SuperNode look for work every so often, and every 50 ms at what its app has done.

    Says whether it does: not where Flower is another than was tested. Looking often, a node may find a message whose
    objects are still on their way from the ServerApp; it asks for those again as soon.
    """
    from flwr.supernode import start_client_internal as node

    names: dict[str, Any] = vars(node)
    if names.get("time") is not time or not _ask_again(names, "pull_objects", seconds):
        _warn("this node looks for work every 3 s, as Flower has it")
        return False

    def sleep(asked_s: float) -> None:  # Flower asks for 3 s without work, and for 0.5 s while its app works
        time.sleep(seconds if asked_s >= 1.0 else min(asked_s / 10, seconds))

    names["time"] = types.SimpleNamespace(**{**vars(time), "sleep": sleep})
    return True


def look_for_the_model_every(seconds: float) -> bool:
    """Let this process's ClientApp look so often whether its node has the whole message; says whether it does."""
    from flwr.supernode.runtime import run_clientapp

    if not _ask_again(vars(run_clientapp), "pull_and_inflate_object_from_tree", seconds):
        _warn("a ClientApp looks for its model after 1, 3, 7, 15, 25 ... s, as Flower has it")
        return False
    return True


def _ask_again(names: dict[str, Any], function: str, seconds: float) -> bool:
    """Shorten the waits of one of a module's functions that pull objects."""
    theirs = names.get(function)
    if theirs is None or not (_known() and _takes(theirs, "initial_backoff", "backoff_cap", "max_tries_per_object")):
        return False
    tries = int(5000 / seconds)  # so it gives up as late as before, after 500 tries, most of them 10 s apart
    waits = {"initial_backoff": seconds / 10, "backoff_cap": seconds, "max_tries_per_object": tries}
    names[function] = functools.partial(theirs, **waits)
    return True


def fetch_objects(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """Fetch all objects: those that are there at once, the others as they come; not too many, and not for ever."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    fetched: dict[str, bytes] = {}
    missing, end = deque(dict.fromkeys(object_ids)), min(time.monotonic() + MOST_S, _fetching.until_s)
    left = _fetching.most_bytes
    while missing:
        before, misses = len(missing), 0
        for _ in range(before):
            if time.monotonic() > end:
                raise ObjectPullError(missing[0], "not there in time")
            try:
                content = pull_object_fn(missing[0])
                left -= len(content)
                if left < 0:
                    raise ObjectPullError(missing[0], f"the reply is larger than {_fetching.most_bytes:.0f} bytes")
                fetched[missing.popleft()] = content
            except ObjectUnavailableError:
                missing.rotate(-1)
                misses += 1
                if misses == MISSES:
                    break
        if len(missing) == before:  # nothing new, so it is worth to wait
            time.sleep(WAIT_S)
    _fetching.at_s = time.monotonic()  # before Flower confirms and decodes it, which is the server's time
    return fetched
