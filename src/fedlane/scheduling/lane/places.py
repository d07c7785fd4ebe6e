"""Latent places: a model of a pair's mean log network time in which delays grow with the distance between two points.

In a network with many channels, a few looks at a client say little about its factors. If each client and each channel
is represented by a point in a unit square, y_i or z_j, only two numbers per client are unknown:

    x_ij = a + s |y_i - z_j| + e_ij,   e_ij ~ N(0, psi).

The posterior of a point assigns a probability to each cell of a grid; all cells are equally likely before the first
look. The posteriors of clients and channels are independent (mean-field variational inference). With r_ij = x_ij - a
and tau_ij = 1 / (psi + s_ij^2 / n_ij), or tau_ij = 0 for a pair that was never tried, one sweep sets

    ln q(y_i = c) = sum_j tau_ij (s r_ij E|c - z_j| - s^2 E|c - z_j|^2 / 2) + constant,

the channels' posteriors in the same way, a and s by weighted least squares, and psi by an EM step. Sweeps only find a
local optimum. They are therefore initialised from the first two principal components of the factor model's columns, and
initialised again as looks accumulate; of the current and the new solution, the one with the larger evidence bound is
kept.

It is not known whether the delays follow any geometry. The places are therefore used only as long as they predict first
looks better than the factor model does, that is, while the discounted sum of the differences of their log predictive
densities is positive.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from fedlane.records import BoolArray, FloatArray, Problem, State
from fedlane.scheduling.lane import location
from fedlane.scheduling.lane.observations import Observed, Pair
from fedlane.scheduling.policy import check_within

MIN_CHANNELS = 8
"""The places are not fitted to fewer channels, because the factor model then has few unknowns."""
SIDE = 16
"""Number of cells along each side of the square."""
RESTARTS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
"""Numbers of tried pairs per client at which the sweeps are initialised again."""
START_SWEEPS = 5
START_WIDTH = 0.15
"""Standard deviation of a channel's initial posterior."""
PRIOR_SLOPE, SLOPE_WEIGHT = 5.0, 4.0
SMALLEST_SLOPE = 0.5
MEMORY = 300.0
"""Number of first looks that the comparison with the factor model remembers."""
LARGEST_DIFFERENCE = 3.0
"""Largest difference, in either direction, that a single look contributes."""
LARGEST_LINE = 1e3
"""Limit of the line's parameters in a stored state; logarithms of times are far smaller."""
NAMES = ("client_place", "channel_place", "place_line", "restarts", "place_score")

_CELL = (np.arange(SIDE) + 0.5) / SIDE
CENTRES = np.stack(np.meshgrid(_CELL, _CELL, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)
"""Centres of the cells, (SIDE^2, 2)."""
_SQUARES = (CENTRES**2).sum(axis=1)
DISTANCES = np.hypot(*(CENTRES[:, None] - CENTRES[None]).transpose(2, 0, 1)).astype(np.float32)
np.fill_diagonal(DISTANCES, 0.52 / SIDE)  # mean distance between two points in the same cell


@dataclass(frozen=True)
class Places:
    """The posteriors of one replica.

    Attributes:
        client: Probability of every cell for each client (U, SIDE^2).
        channel: Probability of every cell for each channel (N, SIDE^2).
        line: The level a, the slope s and the residual variance psi.
        bound: Evidence bound after the latest sweep.
    """

    client: np.ndarray
    channel: np.ndarray
    line: tuple[float, float, float]
    bound: float = -np.inf


def empty_places(problem: Problem) -> dict[str, np.ndarray]:
    """Return the model before the first round, when nothing is known and the places are not used."""
    cells = SIDE**2 if problem.channels >= MIN_CHANNELS else 0
    replicas, uniform = problem.replicas, np.float32(1 / max(cells, 1))
    line = (location.prior_centre(problem.deadline_s) - PRIOR_SLOPE / 2, PRIOR_SLOPE, location.PRIOR_RESIDUAL)
    return {
        "client_place": np.full((replicas, problem.clients, cells), uniform),
        "channel_place": np.full((replicas, problem.channels, cells), uniform),
        "place_line": np.tile(np.array(line), (replicas, 1)),
        "restarts": np.zeros(replicas, np.int64),
        "place_score": np.zeros(replicas),
    }


def check_places(model: State) -> None:
    """Raise `InputError` unless stored places are probabilities, and the line and the score are within their limits."""
    for name in ("client_place", "channel_place"):
        check_within(name, model[name], 0, 1.0001)
        if model[name].shape[-1]:
            check_within(f"{name} (sum)", model[name].sum(axis=-1), 0.99, 1.01)
    check_within("place_line", model["place_line"][:, 0], -LARGEST_LINE, LARGEST_LINE)
    check_within("place_line", model["place_line"][:, 1], SMALLEST_SLOPE, LARGEST_LINE)
    check_within("place_line", model["place_line"][:, 2], location.SMALLEST_RESIDUAL, LARGEST_LINE)
    fits = model["client_place"].shape[-1] > 0  # with few channels, no places are stored
    check_within("restarts", model["restarts"], 0, len(RESTARTS) if fits else 0)
    check_within("place_score", model["place_score"], -1e5, 1e5 if fits else 0.0)


def used(model: State) -> np.ndarray:
    """Return for each replica (R,) whether the places predict better than the factor model."""
    return np.asarray(model["place_score"] > 0)


def moments(model: State, replica: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of a + s |y_i - z_j| for all pairs of a replica, (U, N) each."""
    level, slope, _ = model["place_line"][replica]
    distance, square = _distance_moments(model["client_place"][replica], model["channel_place"][replica])
    return level + slope * distance, slope**2 * (square - distance**2)


def moments_at(model: State, pair: Pair) -> tuple[FloatArray, FloatArray]:
    """Return `moments` for the given pairs, (P,) each."""
    replica, client, channel = pair
    level, slope, _ = model["place_line"][replica].T
    distance, square = np.empty((2, len(replica)))
    for r in np.unique(replica):  # rounding in a product depends on its number of rows, so replicas are kept apart
        at = replica == r
        y, z = model["client_place"][r, client[at]], model["channel_place"][r, channel[at]]
        distance[at] = ((y @ DISTANCES) * z).sum(axis=1)
        (y, y_square), (z, z_square) = _point_moments(y), _point_moments(z)
        square[at] = y_square + z_square - 2.0 * (y * z).sum(axis=1)
    return level + slope * distance, slope**2 * (np.maximum(square, distance**2) - distance**2)


def fitted(model: State, count: FloatArray, mean: FloatArray, spread: FloatArray) -> dict[str, np.ndarray]:
    """Return the places after one sweep over the pairs' counts, means and variances, (R, U, N) each.

    ``model`` also holds the factor model, from which the sweeps are initialised.
    """
    result = {name: model[name].copy() for name in NAMES}
    clients = count.shape[1]
    for r in range(len(count) if count.shape[2] >= MIN_CHANNELS else 0):
        tried = count[r] > 0
        looks = int(tried.sum())
        due = sum(looks >= share * clients for share in RESTARTS)
        if not due and not result["restarts"][r]:
            continue
        error = np.where(tried, spread[r] / np.where(tried, count[r], 1.0), np.inf)
        level, slope, residual = model["place_line"][r]
        places = Places(model["client_place"][r], model["channel_place"][r], (level, slope, residual))
        if result["restarts"][r] > 0:
            places = _swept(places, mean[r], error)
        if due > result["restarts"][r]:
            again = _started(model, r)
            for _ in range(START_SWEEPS):
                again = _swept(again, mean[r], error)
            places = max(places, again, key=lambda candidate: candidate.bound)
            result["restarts"][r] = due
        result["client_place"][r], result["channel_place"][r] = places.client, places.channel
        result["place_line"][r] = places.line
    return result


def scored(
    model: State, pair: Pair, seen: Observed, punctual: BoolArray, spread: FloatArray, first: BoolArray
) -> FloatArray:
    """Return the score (R,) after a round: how much better the places predicted first looks than the factor model did.

    Args:
        model: Both models, as they were before the round.
        pair: The assigned pairs.
        seen: What their uploads showed.
        punctual: Whether each upload was punctual (P,).
        spread: Variance of the log network time from round to round (P,).
        first: Whether each upload was the first look at its pair (P,).
    """
    score = model["place_score"]
    first = first & (model["restarts"][pair[0]] > 0)
    if not first.any():
        return score
    pair = pair[0][first], pair[1][first], pair[2][first]
    replica, value, cut = pair[0], seen.value[first], seen.cut[first]
    density = []
    for (where, variance), residual in (
        (moments_at(model, pair), model["place_line"][replica, 2]),
        (location.moments_at(model, pair), model["residual"][replica]),
    ):
        deviation = np.sqrt(variance + residual + spread[first])
        punctual_density = -(((value - where) / deviation) ** 2) / 2 - np.log(deviation)
        density.append(np.where(punctual[first], punctual_density, log_ndtr((where - cut) / deviation)))
    difference = np.clip(density[0] - density[1], -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    number = np.bincount(replica, minlength=len(score))
    result: FloatArray = score + np.bincount(replica, difference, minlength=len(score))
    return result * (MEMORY / (MEMORY + number))


def _started(model: State, replica: int) -> Places:
    """Return initial places: the channels' points come from the first two principal components of the factor model."""
    columns = location.model_moments({name: model[name][replica : replica + 1] for name in location.NAMES})[0][0]
    columns -= columns.mean(axis=0)
    size, axis = np.linalg.eigh(columns.T @ columns)
    point = axis[:, -2:] * np.sqrt(np.maximum(size[-2:], 0.0))
    width = np.maximum(np.ptp(point, axis=0), 1e-9)
    point = 0.05 + 0.9 * (point - point.min(axis=0)) / width
    squared = ((CENTRES[None] - point[:, None]) ** 2).sum(axis=-1)
    channel = _normalised(-squared / (2 * START_WIDTH**2))
    clients = model["client_place"].shape[1]
    line = (float(model["centre"][replica]) - PRIOR_SLOPE / 2, PRIOR_SLOPE, location.PRIOR_RESIDUAL)
    return Places(np.full((clients, SIDE**2), 1 / SIDE**2, np.float32), channel, line)


def _swept(places: Places, mean: FloatArray, error: FloatArray) -> Places:
    """Return the places after one sweep over a replica's pairs (U, N); the error of an untried pair is infinite."""
    level, slope, residual = places.line
    tau = 1.0 / (residual + error)
    precision = tau.astype(np.float32)
    rest = (mean - level).astype(np.float32)
    client = _posterior(places.channel, precision, rest, slope)
    channel = _posterior(client, precision.T, rest.T, slope)
    distance, square = _distance_moments(client, channel)
    weight, product = tau.sum(), float((tau * distance).sum())
    matrix = [[weight, product], [product, float((tau * square).sum()) + SLOPE_WEIGHT]]
    right = [float((tau * mean).sum()), float((tau * mean * distance).sum()) + SLOPE_WEIGHT * PRIOR_SLOPE]
    level, slope = np.linalg.solve(matrix, right)
    slope = max(float(slope), SMALLEST_SLOPE)
    rest64 = mean - level
    squares = rest64**2 - 2.0 * slope * rest64 * distance + slope**2 * square
    bound = -0.5 * float((tau * squares).sum() - np.log(tau[tau > 0]).sum()) + _entropy(client) + _entropy(channel)
    k = residual * tau
    tried = tau > 0
    total = float((k * k * squares)[tried].sum() + (residual * (1.0 - k[tried])).sum())
    prior = location.RESIDUAL_WEIGHT * location.PRIOR_RESIDUAL
    residual = (total + prior) / (int(tried.sum()) + location.RESIDUAL_WEIGHT)
    return Places(client, channel, (float(level), slope, residual), bound)


def _posterior(other: np.ndarray, precision: np.ndarray, rest: np.ndarray, slope: float) -> np.ndarray:
    """Return the posterior of every row's point, given the posteriors of the columns' points."""
    point, _ = _point_moments(other)
    product = precision * rest
    # Both orders of the products give the same result; the cheaper one is used.
    log = (product @ other) @ DISTANCES if len(product) < len(other) else product @ (other @ DISTANCES)
    log *= np.float32(slope)
    log -= np.float32(slope**2 / 2) * (precision.sum(axis=1, keepdims=True) * _SQUARES)
    log += np.float32(slope**2) * ((precision @ point) @ CENTRES.T)
    return _normalised(log)


def _distance_moments(client: FloatArray, channel: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E|y_i - z_j| and E|y_i - z_j|^2, (U, N) each."""
    distance = (client @ (DISTANCES @ channel.T)).astype(np.float64)
    (y, y_square), (z, z_square) = _point_moments(client), _point_moments(channel)
    square = y_square[:, None] + z_square - 2.0 * (y @ z.T).astype(np.float64)
    return distance, np.maximum(square, distance**2)


def _point_moments(posterior: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E[point] (..., 2) and E|point|^2 (...)."""
    return posterior @ CENTRES, posterior @ _SQUARES


def _normalised(log: FloatArray) -> FloatArray:
    """Return the probabilities along the last axis, given their logarithms up to a constant."""
    log = log - log.max(axis=-1, keepdims=True)
    weight = np.exp(log, dtype=np.float32)
    weight /= weight.sum(axis=-1, keepdims=True)
    return weight


def _entropy(posterior: FloatArray) -> float:
    return float(-(posterior * np.log(np.maximum(posterior, 1e-30))).sum())
