"""The only module that uses Flower's internals: how replies are fetched, and how often a node polls for work.

Flower's `HttpGrid.pull_messages` claims replies once their headers have arrived, then fetches one after the other, two
objects at a time, and retries a missing object after 1, 2, 4, 8, 10, 10 ... s; these waits cannot be configured. Here
the two steps are separate: headers are claimed for all messages in one request, and each claimed reply is fetched by
Flower's own code with another `pull_objects`, which fetches the objects that have arrived and soon retries the others.
Flower itself is not changed.

Flower's SuperNode sleeps for 3 s when there is no work. Its ClientApp starts while the model is still being
transferred, and retries after 1, 2, 4, 8, 10, 10 ... s, so a model that took 8 s to arrive may be noticed after 15 s.
Neither can be configured. `look_every` and `look_for_the_model_every` shorten these waits in a process that runs only a
SuperNode or only a ClientApp.

With untested versions of Flower, and with other grids, Flower's own behaviour is kept.
"""

import functools
import inspect
import json
import logging
import math
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flwr
from flwr.app import Message
from flwr.serverapp import Grid

logger = logging.getLogger("fedlane.flower")

TESTED = ("1.41",)
"""Versions of flwr with which this module was tested."""
WAIT_S = 0.02
"""Wait between two passes over the objects that have not arrived yet."""
MISSES = 3
"""Number of missing objects that end a pass: objects arrive in order, and SuperLink has other work to do."""
FETCH_LIMIT_S = 7200.0
"""Flower's own time limit for fetching a reply."""


class _Fetching(threading.local):
    """Limits and arrival time of this thread's reply, which Flower's code does not pass on to `fetch_objects`."""

    at_s: float | None = None
    until_s = math.inf
    max_bytes = math.inf


_fetching = _Fetching()


@dataclass(frozen=True)
class ReplyClaim:
    """A reply whose header has arrived. It can be claimed only once."""

    reply_to: str
    """Id of the message that it answers."""
    fetch: Callable[[float, float], tuple[Message, float]]
    """Returns the whole reply and the time of its arrival (`time.monotonic`); blocks until it has arrived.

    The arguments are the time to give up and the largest size in bytes; grids other than `HttpGrid` ignore both.
    """


def claim(grid: Grid, message_ids: Sequence[str]) -> list[ReplyClaim]:
    """Claim the replies to these messages that have arrived or begun to arrive."""
    from flwr.proto import runtime_pb2
    from flwr.superlink.grid import http_grid

    adapted = None
    if isinstance(grid, http_grid.HttpGrid):
        adapted = _adapt(http_grid.HttpGrid.pull_messages, http_grid.__dict__.get("pull_objects"))
    if adapted is None:
        return [
            ReplyClaim(m.metadata.reply_to_message_id, functools.partial(_already_fetched, m))
            for m in grid.pull_messages(message_ids)
        ]
    client: Any = grid._runtime_client  # type: ignore[attr-defined]
    answer = client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=message_ids))
    claims = []
    for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        single = runtime_pb2.PullAppMessagesResponse(messages_list=[header], message_object_trees=[tree])
        view = types.SimpleNamespace(_run=grid.run, node=grid.node, _runtime_client=_Claimed(client, single))  # type: ignore[attr-defined]
        claims.append(ReplyClaim(header.metadata.reply_to_message_id, functools.partial(_fetch_claimed, adapted, view)))
    return claims


class _Claimed:
    """Flower's client of the Runtime API that answers `PullMessages` with one header already claimed."""

    def __init__(self, client: Any, answer: Any) -> None:
        self._client, self._answer = client, answer

    def PullMessages(self, request: Any) -> Any:
        return self._answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _already_fetched(message: Message, until_s: float, max_bytes: float) -> tuple[Message, float]:
    return message, time.monotonic()


def _fetch_claimed(
    pull_messages: Callable[..., Iterable[Message]], view: object, until_s: float, max_bytes: float
) -> tuple[Message, float]:
    _fetching.at_s, _fetching.until_s, _fetching.max_bytes = None, until_s, max_bytes
    (message,) = pull_messages(view, [])
    return message, time.monotonic() if _fetching.at_s is None else _fetching.at_s


@functools.cache
def _adapt(
    pull_messages: Callable[..., Iterable[Message]], pull_objects: Callable[..., dict[str, bytes]] | None
) -> Callable[..., Iterable[Message]] | None:
    """Return Flower's function with our `fetch_objects`; None, with a warning, for an untested version of Flower."""
    tested = _is_tested() and isinstance(pull_messages, types.FunctionType)
    fits = _has_parameters(pull_objects, "object_ids", "pull_object_fn")
    if not (tested and fits and {"pull_objects", "PullMessages"} <= set(pull_messages.__code__.co_names)):
        _warn("replies are fetched with Flower's own waits: arrival times may be seconds late (deadlines still hold)")
        return None
    return types.FunctionType(
        pull_messages.__code__,
        {**pull_messages.__globals__, "pull_objects": fetch_objects},
        pull_messages.__name__,
        pull_messages.__defaults__,
        pull_messages.__closure__,
    )


def _is_tested() -> bool:
    return flwr.__version__.rpartition(".")[0] in TESTED


def _has_parameters(function: Callable[..., object] | None, *names: str) -> bool:
    return function is not None and set(names) <= set(inspect.signature(function).parameters)


def _warn(consequence: str) -> None:
    tested = ", ".join(f"{version}.x" for version in TESTED)
    logger.warning("flwr %s differs from the tested %s: %s", flwr.__version__, tested, consequence)


def look_every(seconds: float) -> bool:
    """Make this process's SuperNode poll for work at this interval, and its ClientApp's progress every 50 ms or less.

    A node that polls often may see a message whose objects have not all arrived; it retries those at the same interval.

    Returns:
        Whether the interval was set; False for an untested version of Flower.
    """
    from flwr.supernode import start_client_internal as node

    names: dict[str, Any] = vars(node)
    if names.get("time") is not time or not _shorten_waits(names, "pull_objects", seconds):
        _warn("this node polls for work every 3 s, as Flower's own do")
        return False

    def sleep(asked_s: float) -> None:  # Flower sleeps for 3 s without work, and for 0.5 s while its app runs
        time.sleep(seconds if asked_s >= 1.0 else min(asked_s / 10, seconds))

    names["time"] = types.SimpleNamespace(**{**vars(time), "sleep": sleep})
    return True


def look_for_the_model_every(seconds: float) -> bool:
    """Make this process's ClientApp check for the whole message at this interval; return whether that was set."""
    from flwr.supernode.runtime import run_clientapp

    if not _shorten_waits(vars(run_clientapp), "pull_and_inflate_object_from_tree", seconds):
        _warn("a ClientApp checks for its model after 1, 3, 7, 15, 25 ... s, as Flower's own do")
        return False
    return True


def _shorten_waits(names: dict[str, Any], function: str, seconds: float) -> bool:
    """Shorten the waits of a function that pulls objects; ``names`` is its module's namespace."""
    original = names.get(function)
    if original is None or not (
        _is_tested() and _has_parameters(original, "initial_backoff", "backoff_cap", "max_tries_per_object")
    ):
        return False
    tries = int(5000 / seconds)  # it gives up as late as Flower does: after 500 tries, most of them 10 s apart
    waits = {"initial_backoff": seconds / 10, "backoff_cap": seconds, "max_tries_per_object": tries}
    names[function] = functools.partial(original, **waits)
    return True


def fetch_objects(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """Fetch all objects as they arrive, within the limits of this thread's reply on time and size."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    fetched: dict[str, bytes] = {}
    missing, end = deque(dict.fromkeys(object_ids)), min(time.monotonic() + FETCH_LIMIT_S, _fetching.until_s)
    left = _fetching.max_bytes
    while missing:
        before, misses = len(missing), 0
        for _ in range(before):
            if time.monotonic() > end:
                raise ObjectPullError(missing[0], "it did not arrive in time")
            try:
                content = pull_object_fn(missing[0])
                left -= len(content)
                if left < 0:
                    raise ObjectPullError(missing[0], f"the reply is larger than {_fetching.max_bytes:.0f} bytes")
                fetched[missing.popleft()] = content
            except ObjectUnavailableError:
                missing.rotate(-1)
                misses += 1
                if misses == MISSES:
                    break
        if len(missing) == before:  # nothing new has arrived
            time.sleep(WAIT_S)
    if (size := _inflated_size(fetched)) > _fetching.max_bytes:
        raise ObjectPullError(object_ids[-1], f"the reply has {size} bytes, more than {_fetching.max_bytes:.0f}")
    _fetching.at_s = time.monotonic()  # before Flower confirms and decodes it, which is not part of the delay
    return fetched


def _inflated_size(contents: Mapping[str, bytes]) -> int:
    """Return the number of bytes of all arrays once Flower has joined their chunks.

    An Array lists its chunks by number and may list one many times, so that a small reply becomes a large array. Its
    children may only be chunks: Flower would also join the data of an Array, which may be much larger than its content.
    """
    from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content as read_head
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    size = 0
    for object_id, content in contents.items():
        if not content.startswith(b"Array "):
            continue
        try:
            _, children, _ = read_head(content)
            if any(not contents[child].startswith(b"ArrayChunk ") for child in children):
                raise ValueError("it has parts that are not chunks")
            chunks = json.loads(content.partition(b"\x00")[2])["arraychunk_ids"]
            size += sum(len(contents[children[number]]) for number in chunks)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ObjectPullError(object_id, f"the array is malformed: {error}") from None
    return size
