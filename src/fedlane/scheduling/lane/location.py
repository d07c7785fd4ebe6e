"""A Bayesian factor model of the mean of every pair's log network time. It also predicts pairs that were never tried.

    x_ij = b_j + w_j . f_i + e_ij,    f_i ~ N(0, I),  w_j ~ N(0, I),  b_j ~ N(centre, 1),  e_ij ~ N(0, psi).

A client has K hidden properties f_i (where it is, for example), and every channel weighs them in its own way. The mean
of n samples of a pair is x_ij plus noise of variance s_ij^2 / n. Posteriors of clients and channels are normal and
independent (mean-field variational inference), and a few sweeps per round keep them up to date. Each update is a small
linear regression, given the first two moments of the others. With v_j = (b_j, w_j), g_i = (1, f_i) and
tau_ij = 1 / (psi + s_ij^2 / n_ij), 0 where the pair was never tried:

    precision of f_i:  I + sum_j tau_ij E[w_j w_j'],    precision times mean:  sum_j tau_ij (x_ij E[w_j] - E[b_j w_j]);
    precision of v_j:  I + sum_i tau_ij E[g_i g_i'],    precision times mean:  (centre, 0) + sum_i tau_ij x_ij E[g_i].

A tried pair's mean is then a compromise between the model and its samples, with weight k = psi / (psi + s^2 / n):

    mean  m + k (x - m),   variance  psi (1 - k) + (1 - k)^2 (variance of m),

where k = 0 for a pair that was never tried. Factors without uncertainty would overfit, and pairs would be given up.
"""

import numpy as np

from fedlane.records import FloatArray, IntArray, Problem, State

FACTORS = 3
SWEEPS = 3
PRIOR_RESIDUAL = 0.6
"""Prior of psi, worth `RESIDUAL_WEIGHT` pairs."""
RESIDUAL_WEIGHT = 10.0
SMALLEST_RESIDUAL = 1e-6
"""Lower limit of psi in a stored state; its prior keeps a fitted psi far above."""
NAMES = ("factor", "factor_cov", "loading", "loading_cov", "centre", "residual")


def empty_location(problem: Problem) -> dict[str, np.ndarray]:
    """Return the model before the first round.

    Loadings of 0 would be a saddle point of the sweeps, so the loadings start as cosine waves.
    """
    replicas, clients, channels = problem.replicas, problem.clients, problem.channels
    centre = prior_centre(problem.deadline_s)
    channel, k = np.arange(1, channels + 1)[:, None], np.arange(FACTORS)[None]
    wave = 0.3 * np.cos(2.4 * channel * (k + 1) + k)
    loading = np.concatenate([np.full((channels, 1), centre), wave], axis=1)
    return {
        "factor": np.zeros((replicas, clients, FACTORS)),
        "factor_cov": _repeated(np.eye(FACTORS), replicas, clients),
        "loading": _repeated(loading, replicas),
        "loading_cov": _repeated(np.eye(FACTORS + 1), replicas, channels),
        "centre": np.full(replicas, centre),
        "residual": np.full(replicas, PRIOR_RESIDUAL),
    }


def prior_centre(deadline_s: float) -> float:
    """Return the log network time expected before the first round: that of just over a third of the deadline."""
    return float(np.log(deadline_s)) - 1.0


def model_moments(model: State) -> tuple[FloatArray, FloatArray]:
    """Return the mean and variance of b_j + w_j . f_i of all pairs, (R, U, N) each."""
    replicas, clients, _ = model["factor"].shape
    loading, cov = model["loading"], model["loading_cov"]
    w, channels = loading[..., 1:], loading.shape[1]
    mean = loading[:, None, :, 0] + model["factor"] @ w.transpose(0, 2, 1)
    of_client = _second_moment(model).reshape(replicas, clients, -1)
    variance = of_client @ cov.reshape(replicas, channels, -1).transpose(0, 2, 1)
    outer = (w[..., :, None] * w[..., None, :]).reshape(replicas, channels, -1)
    variance += model["factor_cov"].reshape(replicas, clients, -1) @ outer.transpose(0, 2, 1)
    return mean, variance


def moments_at(model: State, pair: tuple[IntArray, IntArray, IntArray]) -> tuple[FloatArray, FloatArray]:
    """Return `model_moments` of some pairs, (P,) each."""
    replica, client, channel = pair
    factor, factor_cov = model["factor"][replica, client], model["factor_cov"][replica, client]
    loading, cov = model["loading"][replica, channel], model["loading_cov"][replica, channel]
    g = np.concatenate([np.ones((len(factor), 1)), factor], axis=1)
    w = loading[:, 1:]
    mean = (g * loading).sum(axis=1)
    variance = (g[:, :, None] * cov * g[:, None, :]).sum(axis=(1, 2))
    variance += (factor_cov * (cov[:, 1:, 1:] + w[:, :, None] * w[:, None, :])).sum(axis=(1, 2))
    return mean, variance


def compromise(
    model: tuple[FloatArray, FloatArray], residual: FloatArray, count: FloatArray, mean: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the mean and variance of each pair's location, a compromise between the model and the pair's samples."""
    expected, variance = model
    tried = count > 0
    k = np.where(tried, residual / (residual + spread / np.where(tried, count, 1.0)), 0.0)
    return expected + k * (mean - expected), residual * (1.0 - k) + (1.0 - k) ** 2 * variance


def fitted(model: State, count: FloatArray, mean: FloatArray, spread: FloatArray, deadline_s: float) -> State:
    """Return the model after a few sweeps over the pairs' counts, means and variances, (R, U, N) each."""
    tried = count > 0
    error = spread / np.where(tried, count, 1.0)
    for _ in range(SWEEPS):
        precision = np.where(tried, 1.0 / (model["residual"][:, None, None] + error), 0.0)
        model = _with_channels(_with_clients(model, precision, mean), precision, mean)
        b, channels = model["loading"][..., 0], model["loading"].shape[1]
        model["centre"] = (prior_centre(deadline_s) + b.sum(axis=1)) / (1.0 + channels)
        model["residual"] = _residual(model, tried, mean, error)
    return model


def _with_clients(model: State, precision: FloatArray, mean: FloatArray) -> dict[str, np.ndarray]:
    replicas, clients, _ = precision.shape
    loading, cov = model["loading"], model["loading_cov"]
    b, w = loading[..., :1], loading[..., 1:]
    second = w[..., :, None] * w[..., None, :] + cov[..., 1:, 1:]
    matrix = (precision @ second.reshape(replicas, -1, FACTORS**2)).reshape(replicas, clients, FACTORS, FACTORS)
    right = (precision * mean) @ w - precision @ (b * w + cov[..., 0, 1:])
    factor_cov = np.linalg.inv(matrix + np.eye(FACTORS))
    return {**model, "factor": (factor_cov @ right[..., None])[..., 0], "factor_cov": factor_cov}


def _with_channels(model: State, precision: FloatArray, mean: FloatArray) -> dict[str, np.ndarray]:
    replicas, clients, channels = precision.shape
    size = FACTORS + 1
    by_channel = precision.transpose(0, 2, 1)
    matrix = (by_channel @ _second_moment(model).reshape(replicas, clients, -1)).reshape(replicas, channels, size, size)
    g = np.concatenate([np.ones((replicas, clients, 1)), model["factor"]], axis=2)
    right = (precision * mean).transpose(0, 2, 1) @ g
    right[..., 0] += model["centre"][:, None]
    loading_cov = np.linalg.inv(matrix + np.eye(size))
    return {**model, "loading": (loading_cov @ right[..., None])[..., 0], "loading_cov": loading_cov}


def _residual(model: State, tried: np.ndarray, mean: FloatArray, error: FloatArray) -> FloatArray:
    """Return psi: the mean of E[e_ij^2] over the tried pairs, with its prior (an EM step)."""
    expected, variance = model_moments(model)
    psi = model["residual"][:, None, None]
    k = psi / (psi + error)
    squares = np.where(tried, k * k * ((mean - expected) ** 2 + variance) + psi * (1.0 - k), 0.0)
    replicas = len(squares)
    total = squares.reshape(replicas, -1).sum(axis=1) + RESIDUAL_WEIGHT * PRIOR_RESIDUAL
    result: FloatArray = total / (tried.reshape(replicas, -1).sum(axis=1) + RESIDUAL_WEIGHT)
    return result


def _second_moment(model: State) -> FloatArray:
    """Return E[g_i g_i'], (R, U, K + 1, K + 1)."""
    factor = model["factor"]
    g = np.concatenate([np.ones((*factor.shape[:2], 1)), factor], axis=2)
    result: FloatArray = g[..., :, None] * g[..., None, :]
    result[..., 1:, 1:] += model["factor_cov"]
    return result


def _repeated(array: FloatArray, *times: int) -> FloatArray:
    return np.broadcast_to(array, (*times, *array.shape)).copy()
