"""How much detail of the runs fits into a page of limited size, and what is thinned out so that it fits."""

import hashlib
import json
from dataclasses import dataclass

from fedlane.report.run_arrays import CLIENT_COLUMNS, RunArrays

PAGE_BYTES = 4_500_000
"""Limit for a whole page."""
BUDGET_BYTES = 4_300_000
"""Limit for all embedded data; the rest of the page is its script and its style."""
MAX_POINTS, MIN_POINTS = 400, 20
"""Largest number of points of a curve, and the number that remains on a page of very many runs."""
QUEUE_COLUMNS, MOVE_FRAMES = 250, 250
"""Numbers of rounds in the queue figure and in the clients' movement if embedding all rounds would exceed the limit."""
CURVES = 6
"""Largest number of curves of a run."""
BASE64 = 4 / 3
"""Characters per byte."""
TEXT_SHARE, CURVE_SHARE, CLIENT_SHARE = 1 / 6, 1 / 4, 1 / 4
"""Shares of a run's budget for its scenario, its curves and its figures per client; details of rounds get the rest."""
PER_CLIENT, PER_CHANNEL = BASE64 * (24 * len(CLIENT_COLUMNS) + 20), BASE64 * 20
"""Characters of the figures for one client and one channel."""
LINE_LENGTHS = (2000, 400, 120, 60)
"""Lengths to which long lines of a scenario are shortened, one after the other, until the text fits."""


@dataclass(frozen=True)
class Thinning:
    """What all runs of a page have in common: the clients and channels that figures show."""

    client_every: int = 1
    """Stride between the clients of the figures per client."""
    channel_every: int = 1
    """Stride between the channels of the figure of delays."""


@dataclass(frozen=True)
class Detail:
    """The amount of detail that is embedded for one run."""

    points: int
    """Largest number of points of a curve."""
    seeds: int
    """Number of seeds whose rounds are embedded."""
    every: int
    """Stride between embedded rounds."""
    queue_every: int
    """Stride between rounds of the queue figure."""
    move_every: int = 1
    """Stride between the rounds of the table of positions."""


def thinning(clients: int, channels: int, budget_bytes: int) -> Thinning:
    """Strides at which the figures per client and per channel of the largest run take their share of its budget."""
    share = max(budget_bytes * CLIENT_SHARE / 2, 1.0)
    return Thinning(max(1, _ceil(clients * PER_CLIENT / share)), max(1, _ceil(channels * PER_CHANNEL / share)))


def fitting(arrays: RunArrays, budget_bytes: int, thin: Thinning, text: str) -> Detail:
    """The most detail that fits: first fewer points of curves, then fewer seeds, then fewer rounds of one seed.

    Args:
        arrays: the run.
        budget_bytes: limit for the run's data.
        thin: clients and channels of the figures.
        text: the scenario, as it is embedded.
    """
    replicas, rounds, clients, channels = arrays.shape
    slots = arrays.slot_client.shape[2]
    index_bytes = 2 + (clients > 254) + (channels > 254)
    slot_bytes = 16 + (0 if arrays.predicted is None else 6 + 1 / 8)  # delays and energy; predictions
    point_bytes = BASE64 * (CURVES * (4 + 24) + 8)
    points = int(max(MIN_POINTS, min(MAX_POINTS, budget_bytes * CURVE_SHARE // point_bytes)))
    figures_bytes = clients / thin.client_every * PER_CLIENT + channels / thin.channel_every * PER_CHANNEL
    fixed_bytes = 5_000 + point_bytes * min(points, max(rounds, 1)) + figures_bytes + _embedded_size(text)

    frames = 0 if arrays.positions is None else len(arrays.positions.rounds)

    def seed_bytes(every: int, queue_every: int, move_every: int) -> float:
        per_round = slots * (index_bytes + slot_bytes + 1 / 8) + clients / 4 + 20
        queues = _ceil(rounds / queue_every) * clients * 2
        moves = (_ceil(frames / move_every) + 1) * (4 * clients + 8) if frames else 0
        return BASE64 * (_ceil(rounds / every) * per_round + queues + moves + 8 * (clients + channels)) + 40

    def stored(rounds_between: float) -> int:
        """The next stride at which queues are known."""
        return arrays.client_every * max(1, _ceil(rounds_between / arrays.client_every))

    left = max(budget_bytes - fixed_bytes, 0.0)
    every, queue_every, move_every = 1, stored(1), 1
    if replicas * seed_bytes(1, queue_every, 1) > left:
        queue_every, move_every = stored(rounds / QUEUE_COLUMNS), max(1, _ceil(frames / MOVE_FRAMES))
    while seed_bytes(every, queue_every, move_every) > left and every < rounds:
        every, queue_every, move_every = 2 * every, max(queue_every, stored(2 * every)), 2 * move_every
    seeds = max(1, min(replicas, int(left / seed_bytes(every, queue_every, move_every))))
    return Detail(points, seeds, every, queue_every, move_every)


def shortened(text: str, budget_bytes: int) -> str:
    """A scenario's text with its long lines shortened, so that it takes its share of the budget.

    A shortened line ends in the number of omitted characters and a digest of the line, so that lines which differ
    behind the cut still differ.
    """
    limit = int(budget_bytes * TEXT_SHARE)
    for length in LINE_LENGTHS:
        if _embedded_size(text) <= limit:
            return text
        text = "\n".join(_shortened_line(line, length) for line in text.split("\n"))
    if _embedded_size(text) <= limit:
        return text
    kept = text[: limit // 2]  # an embedded character may take more than one
    return kept.rpartition("\n")[0] + f"\n# {len(text) - len(kept):,} more characters are not shown"


def _embedded_size(text: str) -> int:
    return len(json.dumps(text))


def _shortened_line(line: str, length: int) -> str:
    if len(line) <= length + 40:
        return line
    digest = hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{line[:length]} … ({len(line) - length:,} more characters, digest {digest})"


def _ceil(value: float) -> int:
    return int(-(-value // 1))
