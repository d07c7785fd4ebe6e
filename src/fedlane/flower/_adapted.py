"""The one place that reaches into Flower: how replies are claimed, and fetched while they are still being uploaded.

Flower's `HttpGrid.pull_messages` claims replies once their headers are there, then fetches one after the other, two
objects at a time, and asks for one that is missing again after 1, 2, 4, 8, 10, 10 ... s; it has no argument for it.
Here its two halves run apart: headers are claimed for all messages in one question, and each claimed reply is fetched
on its own by the same code with another `pull_objects`, which fetches what is there and soon asks again for what is
not. Flower itself is not changed. Only versions that this was tested with are treated so; with others, and other grids,
`pull_messages` is called as it is.
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
class Claim:
    """A reply whose header is there. Nobody else can have it."""

    reply_to: str
    """The id of the message that it answers."""
    fetch: Callable[[float, float], tuple[Message, float]]
    """The whole reply, and when the last of it was here (`time.monotonic`); blocks until it is.

    Called with when to give up and how many bytes a reply may have; with other grids than Flower's own both are moot.
    """


def claim(grid: Grid, message_ids: Sequence[str]) -> list[Claim]:
    """The replies to these messages that are there, or have begun to arrive."""
    from flwr.proto import runtime_pb2
    from flwr.superlink.grid import http_grid

    adapted = None
    if isinstance(grid, http_grid.HttpGrid):
        adapted = _adapted(http_grid.HttpGrid.pull_messages, http_grid.__dict__.get("pull_objects"))
    if adapted is None:
        return [
            Claim(m.metadata.reply_to_message_id, functools.partial(_same, m)) for m in grid.pull_messages(message_ids)
        ]
    client: Any = grid._runtime_client  # type: ignore[attr-defined]
    answer = client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=message_ids))
    claims = []
    for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        one = runtime_pb2.PullAppMessagesResponse(messages_list=[header], message_object_trees=[tree])
        seen = types.SimpleNamespace(_run=grid.run, node=grid.node, _runtime_client=_Claimed(client, one))  # type: ignore[attr-defined]
        claims.append(Claim(header.metadata.reply_to_message_id, functools.partial(_only, adapted, seen)))
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
    known = flwr.__version__.rpartition(".")[0] in TESTED and isinstance(pull_messages, types.FunctionType)
    fits = pull_objects is not None and {"object_ids", "pull_object_fn"} <= set(
        inspect.signature(pull_objects).parameters
    )
    if not (known and fits and {"pull_objects", "PullMessages"} <= set(pull_messages.__code__.co_names)):
        logger.warning(
            "flwr %s is not one of %s: replies are asked for with Flower's own waits, so that arrivals may be stamped "
            "seconds late (deadlines hold all the same)",
            flwr.__version__,
            ", ".join(f"{version}.x" for version in TESTED),
        )
        return None
    return types.FunctionType(
        pull_messages.__code__,
        {**pull_messages.__globals__, "pull_objects": fetch_objects},
        pull_messages.__name__,
        pull_messages.__defaults__,
        pull_messages.__closure__,
    )


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
