"""Rows of a history for the pairs that were tried: a table that grows while rounds are played.

With 10 million pairs, most of which are never tried, a row for every pair would not fit into memory. ``slot`` (R, U, N)
is the index of a pair's row, -1 for none; ``slots`` (R,) is the number of rows in use; ``history`` (R, S, G) holds the
rows.
"""

import numpy as np

from fedlane.records import IntArray, State
from fedlane.scheduling.policy import check_within
from fedlane.validate import InputError


def with_slots(state: State, pair: tuple[IntArray, IntArray, IntArray]) -> State:
    """Give every pair that was tried for the first time a row of the history, which doubles when it is full."""
    fresh = state["slot"][pair] < 0
    replica, client, channel = (index[fresh] for index in pair)
    if len(replica) == 0:
        return state
    slots = state["slots"]
    added = np.bincount(replica, minlength=len(slots))
    rank = np.arange(len(replica)) - (np.cumsum(added) - added)[replica]
    state["slot"][replica, client, channel] = slots[replica] + rank
    history = state["history"]
    needed = int((slots + added).max())
    if needed > history.shape[1]:
        pairs = state["slot"].shape[1] * state["slot"].shape[2]
        more = max(needed, min(pairs, 2 * history.shape[1])) - history.shape[1]
        history = np.concatenate([history, np.zeros((len(slots), more, history.shape[2]), np.float32)], axis=1)
    return {**state, "slots": slots + added, "history": history}


def check_slots(state: State) -> None:
    """Raise `InputError` unless every pair that was tried, and no other, has a row that it shares with no pair."""
    slot, slots, count, history = state["slot"], state["slots"], state["count"], state["history"]
    check_within("slots", slots, 0, history.shape[1])
    check_within("slot", slot, -1, slots[:, None, None] - 1)
    replica, client, channel = np.nonzero(slot >= 0)
    rows = replica * history.shape[1] + slot[replica, client, channel]
    if not np.array_equal(slot >= 0, count > 0) or len(np.unique(rows)) != len(rows):
        raise InputError("state.slot must give every pair that was tried a row of its own, and no other pair")
