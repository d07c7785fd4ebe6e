"""What `lane` believes about every pair, given the models of location and spread and the pair's own uploads.

In replicas in which the latent places predict better than the factor model, they replace it.
"""

from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray, State
from fedlane.scheduling.lane import delay_rows, first_looks, location, observations, places, spread


@dataclass(frozen=True)
class Beliefs:
    """What is believed about some pairs; all arrays have the same shape, (R, U, N) or (P,).

    Attributes:
        mean: Mean of the pair's location, which is its mean log network time.
        variance: Variance of the location.
        spread: Variance of the log network time from round to round.
    """

    mean: FloatArray
    variance: FloatArray
    spread: FloatArray


def beliefs(state: State) -> Beliefs:
    """Return what is believed about every pair, (R, U, N)."""
    model, residual = location.model_moments(state), state["residual"].copy()
    for r in np.nonzero(places.used(state))[0].tolist():
        model[0][r], model[1][r] = places.moments(state, r)
        residual[r] = state["place_line"][r, 2]
    own = state["information"], state["mean"], state["variance"]
    line = spread.SpreadLine.stored(state)
    return _combined(model, residual[:, None, None], own, line, state["doubt"][:, None, None], slice(None))


def predicted(state: State, pair: observations.Pair, deadline_s: float) -> observations.Prediction:
    """Return the prediction for the next upload of each given pair."""
    belief = _beliefs_at(state, pair)
    punctual = _cdf(state, pair, belief, deadline_s)[:, delay_rows.CELLS]
    return observations.Prediction(belief.mean, belief.variance, belief.spread, punctual)


def predictive_cdf(state: State, pair: observations.Pair, deadline_s: float) -> FloatArray:
    """Return the predictive CDFs of the given pairs at `delay_rows.POINTS`, (P, CELLS + 1)."""
    return _cdf(state, pair, _beliefs_at(state, pair), deadline_s)


def _cdf(state: State, pair: observations.Pair, belief: Beliefs, deadline_s: float) -> FloatArray:
    """Return `predictive_cdf`, given the beliefs about the pairs."""
    replica, client, _ = pair
    mean, spread_s2 = (moment[replica, client] for moment in observations.compute_moments(state))
    total = belief.variance + belief.spread
    shift, log_mean, deviation = delay_rows.sum_moments(belief.mean, total, mean, spread_s2)
    log_mean, deviation = (np.ascontiguousarray(array).reshape(-1, 1, 1) for array in (log_mean, deviation))
    slot, count = state["slot"][pair], state["count"][pair].reshape(-1, 1, 1)
    history = state["history"][replica, np.maximum(slot, 0)][:, None]
    own = np.where(slot < 0, -1, 0).astype(np.int32).reshape(-1, 1, 1)
    row = delay_rows.predictive_rows(log_mean, deviation, shift[:, None], count, own, history, deadline_s)
    return row[:, 0, 0].astype(np.float64)


def _beliefs_at(state: State, pair: observations.Pair) -> Beliefs:
    """Return what is believed about the given pairs, (P,), as `beliefs` does for all pairs."""
    replica = pair[0]
    model, residual = location.moments_at(state, pair), state["residual"][replica]
    better = places.used(state)[replica]
    if better.any():
        mean, variance = places.moments_at(state, pair)
        model = np.where(better, mean, model[0]), np.where(better, variance, model[1])
        residual = np.where(better, state["place_line"][replica, 2], residual)
    own = state["information"][pair], state["mean"][pair], state["variance"][pair]
    return _combined(model, residual, own, spread.SpreadLine.stored(state), state["doubt"][replica], replica)


def _combined(
    model: tuple[FloatArray, FloatArray],
    residual: FloatArray,
    own: tuple[FloatArray, FloatArray, FloatArray],
    line: spread.SpreadLine,
    factor: FloatArray,
    replica: np.ndarray | slice,
) -> Beliefs:
    """Return the beliefs, given a model's prediction, its residual variance and the pairs' own uploads.

    Args:
        model: Mean and variance of the model's prediction of the location.
        residual: Variance of a pair's location around the model.
        own: Information, mean and variance of the pairs' own uploads.
        line: The regression line of the spread, which gives the typical spread of a location.
        factor: Factor by which the variance of untried pairs is multiplied.
        replica: Replica of each pair, or a slice for all replicas.
    """
    information, mean, variance = own
    typical = line.variance(np.where(information >= observations.TRIED, mean, model[0]), replica)
    typical = spread.shrunk(typical, information, variance)
    where, doubt = location.compromise(model, residual, information, mean, typical)
    return Beliefs(where, first_looks.calibrated(doubt, information, factor), typical)
