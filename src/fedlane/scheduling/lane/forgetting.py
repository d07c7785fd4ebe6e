"""Detection of changes in the network, and what to forget after one.

The surprise of an upload is the log likelihood ratio of two hypotheses: the pair's location has moved by a normal step
of variance `STEP`, or the prediction N(m, v) still holds. With z^2 = (x - m)^2 / v,

    surprise = z^2 / 2 * STEP / (v + STEP) - ln(1 + STEP / v) / 2,

which is negative on average while nothing changes. For a late upload, only c is known, the log network time beyond
which it is late. Its surprise is the log ratio of the two probabilities of being late. A change may also make a pair
useless, however fast it was (probability `USELESS`); without a change, an upload may also be lost (`LOST`):

    surprise = ln(USELESS + (1 - USELESS) Phi((m - c) / sqrt(v + STEP))) - ln(P(late) + LOST).

Each surprise is added to a running sum for its client and to one for the whole network; the sums never fall below 0
(CUSUM, Page 1954). In the network's sum, a round counts as at most `ROUND_UPLOADS` uploads, because the model's small
errors are shared by all uploads of a round. When a sum exceeds the threshold, each pair of the client, or of the whole
network, is reduced to the weight of one upload. Detection is preferred to steady discounting, because discounting costs
time on every network that does not change.
"""

import numpy as np
from scipy.special import ndtr

from fedlane.records import FloatArray, Problem, State
from fedlane.scheduling.lane.observations import LOST, TRIED, Pair, Prediction

STEP = 0.5
USELESS = 0.1
"""Probability that a pair is always late after a change."""
ROUND_UPLOADS = 4
LARGEST_SURPRISE, LARGEST_LATE_SURPRISE = 5.0, 0.7
"""Upper limits of an upload's surprise: one deep fade or lost upload is not a change, but a run of late ones is."""
WELL_KNOWN = 4.0
"""Number of uploads after which a pair is monitored; earlier predictions may be wrong without any change."""
COUNTS = ("count", "information")
"""Arrays that are lowered to forget a pair."""
KEPT_COUNT = 1.0
SMALLEST_COUNT = TRIED
"""Count at which steady forgetting stops, so that a tried pair never becomes untried."""


def no_surprise(problem: Problem) -> dict[str, np.ndarray]:
    """Return the sums before the first round."""
    return {"surprise": np.zeros(problem.replicas), "client_surprise": np.zeros(problem.quotas.shape)}


def surprise(value: FloatArray, expected: Prediction) -> FloatArray:
    """Return the log likelihood ratio of a change for punctual uploads with the given log network times, (P,)."""
    v = expected.variance
    squared = (value - expected.mean) ** 2 / v
    result: FloatArray = squared / 2 * STEP / (v + STEP) - np.log1p(STEP / v) / 2
    return np.minimum(result, LARGEST_SURPRISE)


def late_surprise(cut: FloatArray, expected: Prediction) -> FloatArray:
    """Return the log likelihood ratio of a change for late uploads, (P,), clipped to its limits."""
    late_if_moved = ndtr((expected.mean - cut) / np.sqrt(expected.variance + STEP))
    late_if_changed = USELESS + (1.0 - USELESS) * late_if_moved
    result: FloatArray = np.log(late_if_changed / (1.0 - expected.punctual + LOST))
    return np.clip(result, -LARGEST_SURPRISE, LARGEST_LATE_SURPRISE)


def forget_changed(state: State, pair: Pair, ratio: FloatArray, threshold: float) -> State:
    """Add the round's surprises (P,) to the sums; where a sum exceeds the threshold, forget and reset the sum to 0.

    Args:
        state: The state after the round's observations.
        pair: The well-known pairs that had an upload, punctual or late.
        ratio: Their surprises.
        threshold: The threshold; infinity turns detection off.
    """
    replica, client, _ = pair
    network, of_client = state["surprise"].copy(), state["client_surprise"].copy()
    number = np.bincount(replica, minlength=len(network))
    total = np.bincount(replica, ratio, minlength=len(network))
    network = np.maximum(network + total * np.minimum(1.0, ROUND_UPLOADS / np.maximum(number, 1)), 0.0)
    of_client[replica, client] = np.maximum(of_client[replica, client] + ratio, 0.0)
    everywhere = network > threshold
    changed = (of_client > threshold) | everywhere[:, None]
    network[everywhere] = 0.0
    of_client[changed] = 0.0
    kept = {name: state[name] for name in COUNTS}
    if changed.any():
        for name, count in kept.items():
            kept[name] = np.where(changed[..., None], np.minimum(count, np.float32(KEPT_COUNT)), count)
    return {**state, **kept, "surprise": network, "client_surprise": of_client}


def discounted(count: FloatArray, forgetting: float) -> FloatArray:
    """Return the counts after a round of steady forgetting, which removes the share ``forgetting`` of every count."""
    if not forgetting:
        return count
    return np.maximum(count * np.float32(1.0 - forgetting), np.minimum(count, np.float32(SMALLEST_COUNT)))
