"""Theorems 1, 5 and 6 with all their constants, against hand computation; where their bounds are informative."""

import math

import numpy as np
import pytest

from fedlane.theory import BoundInputs, convex_bound, drift, model_divergence, nonconvex_bound
from fedlane.validate import InputError


def bound_inputs(**changes):
    values = {
        "sizes": np.array([100.0, 300.0]),
        "label_shares": np.array([[0.75, 0.25], [0.25, 0.75]]),
        "batch_size": np.array([10.0, 10.0]),
        "epsilon": np.array([1.0, 2.0]),
        "delta": np.array([1e-3, 1e-5]),
        "learning_rate": 0.1,
        "clip_norm": 2.0,
        "local_iterations": 3,
        "smoothness": 4.0,
    }
    return BoundInputs(**{**values, **changes})


SKEW = np.array([0.75, 0.25])
NOISE = np.array(
    [
        4 * 0.1 * 2 * (10 / 100) * math.sqrt(2 * 3 * math.log(1e3)) / (math.sqrt(math.pi) * 10 * 1.0),
        4 * 0.1 * 2 * (10 / 300) * math.sqrt(2 * 3 * math.log(1e5)) / (math.sqrt(math.pi) * 10 * 2.0),
    ]
)


def test_theta_by_hand():
    growth = 1 + 1.4 + 1.4**2
    np.testing.assert_allclose(model_divergence(bound_inputs()), growth * (0.1 * 2 * SKEW + NOISE))


def test_model_divergence_is_theta_times_its_constants():
    from fedlane.theory import theta

    s = bound_inputs()
    plain = theta(s.label_shares, s.sizes, s.epsilon, s.delta, local_iterations=3, batch_size=s.batch_size)
    np.testing.assert_allclose(model_divergence(s) / plain, 0.1 * 2 * (1 + 1.4 + 1.4**2))


def test_drift_by_hand():
    """Both clients are punctual; the second only; none."""
    punctual = np.array([[True, True], [False, True], [False, False]])
    growth = 1.4 + 1.4**2
    noise = math.sqrt((0.25 * NOISE[0]) ** 2 + (0.75 * NOISE[1]) ** 2)
    expected = [
        0.0 + (noise + 0.2 * (0.25 * 0.75 + 0.75 * 0.25)) * growth,
        0.2 * (0.25 + 0.25) + (noise + 0.2 * 0.25) * growth,
        0.2 * 1.0 + noise * growth,
    ]
    np.testing.assert_allclose(drift(bound_inputs(), punctual), expected)


def ideal(**changes):
    """Return inputs of equal clients with the same labels and no noise."""
    values = {
        "sizes": np.array([50.0, 50.0]),
        "label_shares": np.full((2, 2), 0.5),
        "epsilon": np.full(2, np.inf),
    }
    return bound_inputs(**{**values, **changes})


ALL = np.ones((200, 2), bool)


def test_the_convex_bound_where_it_is_informative():
    """Only the progress term remains: 1 / (T tau eta phi), phi = (1 - eta lambda / 2) / distance^2."""
    bound = convex_bound(ideal(), ALL, distance=3.0)
    assert bound.vacuous is None
    assert bound.value == pytest.approx(1 / (200 * 3 * 0.1 * 0.8 / 9))


def test_the_convex_bound_by_hand_with_absent_clients():
    """With a single step (tau = 1), Xi depends on absence only."""
    s = ideal(local_iterations=1, learning_rate=0.01)
    punctual = ALL.copy()
    punctual[::4, 0] = False
    present = punctual.sum(axis=1)
    now = punctual / present[:, None]
    xi = 0.02 * np.abs(0.5 - now).sum(axis=1)
    phi = (1 - 0.02) / 9.0
    participation = 1.0  # the second client is always punctual, so the scatter term is 0
    hat = 4.0 * xi + participation * 0
    inner = 4 * 0.01 * phi * 200**2 * (phi * xi.mean() + present)
    eps_0 = min((1 + np.sqrt(1 + inner)) / (2 * 0.01 * phi * 200))
    denominator = 200 * 0.01 * phi - (200 * phi * xi.mean() + hat.max()) / eps_0**2
    bound = convex_bound(s, punctual, distance=3.0)
    assert denominator > 0
    assert bound.value == pytest.approx(1 / denominator)


def test_the_convex_bound_by_hand_with_clients_that_differ():
    """Each client is punctual in three of four rounds, so the scatter term is not 0."""
    s = ideal(label_shares=np.array([[0.55, 0.45], [0.45, 0.55]]), local_iterations=1, learning_rate=0.01)
    punctual = ALL.copy()
    punctual[::4, 0] = False
    punctual[2::4, 1] = False
    present = punctual.sum(axis=1)
    xi = 0.02 * np.abs(0.5 - punctual / present[:, None]).sum(axis=1)
    theta = 0.02 * 0.1  # eta C sum_m |p_im - q_m|
    pairs = 4 * 50.0**4 * 2 * theta**2
    scatter = 4.0 * 0.75 * 0.25 * pairs / (100.0**2 * 50.0**2)
    hat = scatter / (2 * present**2) + 4.0 * xi
    phi = (1 - 0.02) / 9.0
    inner = 4 * 0.01 * phi * 200**2 * (phi * xi.mean() + present)
    eps_0 = min((1 + np.sqrt(1 + inner)) / (2 * 0.01 * phi * 200))
    denominator = 200 * 0.01 * phi - (200 * phi * xi.mean() + hat.max()) / eps_0**2
    bound = convex_bound(s, punctual, distance=3.0)
    assert denominator > 0
    assert bound.value == pytest.approx(1 / denominator, rel=1e-9)
    assert scatter / 2 > 1e-7 * hat.max()  # large enough to matter at that precision


def test_unclipped_gradients_are_refused():
    with pytest.raises(InputError, match=r"clip_norm must be .* got inf"):
        bound_inputs(clip_norm=math.inf)


def test_the_convex_bound_is_vacuous_at_the_paper_s_settings():
    shares = np.full((10, 10), 0.02) + 0.8 * np.eye(10)
    paper = bound_inputs(
        sizes=np.full(10, 6000.0),
        label_shares=shares,
        batch_size=np.full(10, 64.0),
        epsilon=np.full(10, 25.0),
        delta=np.full(10, 1e-3),
        clip_norm=1.0,
        local_iterations=5,
    )
    punctual = np.random.default_rng(0).random((500, 10)) < 0.4
    bound = convex_bound(paper, punctual, distance=5.0)
    assert bound.value == math.inf
    assert "outweigh progress" in bound.vacuous


def test_the_nonconvex_bound_by_hand():
    s = ideal(clip_norm=20.0)
    punctual = ALL.copy()
    punctual[:100, 0] = False
    punctual[100:, 1] = False  # each in half of the rounds: P = 1/2, one client per round
    scale = 0.1 * 0.8
    theta = model_divergence(s) ** 2  # 0: the same labels, no noise
    assert theta.max() == 0
    xi = 0.1 * 20 * 1.0
    bound = nonconvex_bound(s, punctual, first_gap=5.0)
    assert bound.value == pytest.approx(5 / (200 * scale) + 4.0 * xi / scale)
    assert bound.vacuous is None
    skewed = ideal(label_shares=np.array([[1.0, 0.0], [0.0, 1.0]]), clip_norm=20.0)
    squares = 50.0**2
    theta = model_divergence(skewed) ** 2
    pairs = sum(squares * squares * (a + b) for a in theta for b in theta)
    scatter = 4.0 * 0.25 * pairs / (100.0**2 * 50.0**2)
    expected = 5 / (200 * scale) + scatter / scale + 4.0 * drift(skewed, punctual).mean() / scale
    skewed_bound = nonconvex_bound(skewed, punctual, first_gap=5.0)
    assert skewed_bound.value == pytest.approx(expected)
    assert "clipped gradients never exceed" in skewed_bound.vacuous


def test_the_nonconvex_bound_needs_a_client_in_every_round():
    punctual = ALL.copy()
    punctual[7] = False
    assert "no client was punctual" in nonconvex_bound(ideal(), punctual, 5.0).vacuous


def test_too_large_a_step_is_refused():
    with pytest.raises(InputError, match=r"eta lambda_max < 1, got 1\.2"):
        bound_inputs(smoothness=12.0)
