"""The compiled search of `clairvoyant`: the matching of known delays that maximises

    sum_i Q_i 1{d_ij <= 1}  -  w max_i min(d_ij, 1),   delays in units of the deadline.

Among the matchings whose delays are at most x, the largest sum of queues W(x) is found greedily: clients are added in
the order of their queues if an augmenting path exists, because sets of clients that can be matched form a matroid. W
does not fall with x, so an interval [a, b] of levels holds nothing better than W(b) - w a, and most can be skipped.
"""

import numpy as np

from fedlane.compiled import kernel, part
from fedlane.records import BoolArray, FloatArray, IntArray


def best_round(delay: FloatArray, queue: FloatArray, available: BoolArray, weight: float) -> IntArray:
    """Return the best matching of min(N, available) clients in each replica, (R, U).

    Args:
        delay: (R, U, N) in units of the deadline; may be +inf.
        queue: (R, U), at least 0.
        available: (R, U).
        weight: w, at least 0.
    """
    replicas, clients, _ = delay.shape
    usable = np.where(available[..., None], delay, np.inf)
    levels = np.sort(np.minimum(usable, 1.0).reshape(replicas, -1), axis=1)
    order = np.argsort(np.where(available, -queue, np.inf), axis=1, kind="stable")
    result = np.full((replicas, clients), -1, np.int64)
    search_levels(usable, queue, order, available.sum(axis=1), levels, float(weight), result)
    return result


_TYPES = "(float64[:, :, ::1], float64[:, ::1], int64[:, ::1], int64[::1], float64[:, ::1], float64, int64[:, ::1])"


@kernel(_TYPES)
def search_levels(delay, queue, order, number, levels, weight, result):  # type: ignore[no-untyped-def]
    """Write the best matching of each replica into ``result`` (R, U); ``order`` has the largest queues first."""
    replicas, _, channels = delay.shape
    last = levels.shape[1] - 1
    client_at, parent = np.empty(channels, np.int64), np.empty(channels, np.int64)
    mark, waiting = np.empty(channels, np.int64), np.empty(channels + 1, np.int64)
    ends, sums = np.empty((128, 2), np.int64), np.empty((128, 2))
    for r in range(replicas):
        size = min(channels, number[r])
        if size == 0:
            continue
        # If one upload is late, the round lasts until the deadline, so serving more clients costs no further time.
        count, total = _matched(r, delay, queue, order, number[r], size, 1.0, client_at, parent, mark, waiting)
        best, best_level = total - weight, 1.0
        low, high = 0, last
        while low < high:  # the first level at which all channels can be used
            middle = (low + high) // 2
            count, _ = _matched(
                r, delay, queue, order, number[r], size, levels[r, middle], client_at, parent, mark, waiting
            )
            if count < size:
                low = middle + 1
            else:
                high = middle
        count, first = _matched(
            r, delay, queue, order, number[r], size, levels[r, low], client_at, parent, mark, waiting
        )
        if count == size:
            for level, value in ((levels[r, last], total), (levels[r, low], first)):
                if value - weight * level >= best:
                    best, best_level = value - weight * level, level
            ends[0, 0], ends[0, 1], sums[0, 0], sums[0, 1] = low, last, first, total
            depth = 1
            while depth > 0:
                depth -= 1
                a, b, below, above = ends[depth, 0], ends[depth, 1], sums[depth, 0], sums[depth, 1]
                if b - a <= 1 or above <= below or above - weight * levels[r, a + 1] <= best:
                    continue
                middle = (a + b) // 2
                _, value = _matched(
                    r, delay, queue, order, number[r], size, levels[r, middle], client_at, parent, mark, waiting
                )
                if value - weight * levels[r, middle] > best:
                    best, best_level = value - weight * levels[r, middle], levels[r, middle]
                ends[depth, 0], ends[depth, 1], sums[depth, 0], sums[depth, 1] = middle, b, value, above
                depth += 1
                ends[depth, 0], ends[depth, 1], sums[depth, 0], sums[depth, 1] = a, middle, below, value
                depth += 1
        _matched(r, delay, queue, order, number[r], size, best_level, client_at, parent, mark, waiting)
        for j in range(channels):
            if client_at[j] >= 0:
                result[r, client_at[j]] = j
        place = 0
        for j in range(channels):  # channels that are left go to clients who will be late
            if client_at[j] < 0:
                while place < number[r] and result[r, order[r, place]] >= 0:
                    place += 1
                if place < number[r]:
                    result[r, order[r, place]] = j


@part()
def _matched(r, delay, queue, order, number, size, level, client_at, parent, mark, waiting):  # type: ignore[no-untyped-def]
    """Match clients in order over pairs of delay at most ``level``; return how many and the sum of their queues.

    ``mark`` is the last search that saw a channel; channels of a search that failed lead nowhere and are closed.
    """
    channels = client_at.shape[0]
    closed = number + 1
    for j in range(channels):
        client_at[j] = -1
        mark[j] = -1
    count, total = 0, 0.0
    for place in range(number):
        if count == size:
            break
        waiting[0] = order[r, place]
        begin, end, free = 0, 1, -1
        while begin < end and free < 0:
            i = waiting[begin]
            begin += 1
            for j in range(channels):
                if mark[j] < place and delay[r, i, j] <= level:
                    mark[j] = place
                    parent[j] = i
                    if client_at[j] < 0:
                        free = j
                        break
                    waiting[end] = client_at[j]
                    end += 1
        if free < 0:
            for j in range(channels):
                if mark[j] == place:
                    mark[j] = closed
            continue
        count += 1
        total += queue[r, order[r, place]]
        while free >= 0:  # along the path, each client moves to the channel that it reached
            i, left = parent[free], -1
            for j in range(channels):
                if client_at[j] == i and j != free:
                    left = j
                    break
            client_at[free] = i
            free = left
    return count, total
