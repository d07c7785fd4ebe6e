"""The release of losses inside the budget of a client's training steps.

A policy may ask for the mean and the root mean square of a client's losses. Both are queries on its records. Under
"rigorous" they are answered from the Poisson sample of an upload's first step, as one vector: a record whose loss,
clipped to [0, L], is l contributes

    (l, l^2 / L),   with norm sqrt(l^2 + l^4 / L^2) <= sqrt(2) L,   reached at l = L.

Adjacency is zero-out: a null record contributes nothing. The sum over the sample therefore has L2 sensitivity
sqrt(2) L, and N(0, (z_l sqrt(2) L)^2) in each of its two entries is Gaussian noise of multiplier z_l.

The same sample's clipped gradients have sensitivity C and noise z_g C. Divided by their noise, sums and gradients are
one vector with unit noise, to which a record contributes at most sqrt(1 / z_g^2 + 1 / z_l^2). With

    1 / z^2 = 1 / z_g^2 + 1 / z_l^2

the step is thus a Poisson-sampled Gaussian mechanism with multiplier z, exactly what is accounted for: the accounting
does not change. Losses are paid for with a noisier first step.
"""

from dataclasses import replace

import numpy as np

from fedlane.privacy.mechanisms import mechanism_of
from fedlane.records import FloatArray, LossQuery, MechanismSpec
from fedlane.validate import InputError


def first_step_noise(step_noise: FloatArray, loss_noise: float) -> FloatArray:
    """Return z_g of 1 / z^2 = 1 / z_g^2 + 1 / z_l^2, for each z in ``step_noise``.

    Args:
        step_noise: Noise multiplier z of a step, of any shape.
        loss_noise: Noise multiplier z_l of the losses, greater than every z.

    Raises:
        InputError: The noise of the losses does not exceed that of a step.

    Examples:
        >>> first_step_noise(np.array([3.0]), 5.0).tolist()
        [3.75]
    """
    largest = float(np.max(step_noise))
    if not loss_noise > largest:
        raise InputError(
            f"privacy.loss_noise must be greater than the noise multiplier of a step, {largest:.4g}, got "
            f"{loss_noise:g}: raise it, or raise privacy.epsilon"
        )
    ratio = step_noise / loss_noise
    return np.asarray(step_noise / np.sqrt((1.0 - ratio) * (1.0 + ratio)))


def with_losses(spec: MechanismSpec, clip: float, noise: float) -> MechanismSpec:
    """Return a mechanism whose clients report their losses: within the budget if it guarantees one, else exactly.

    Args:
        spec: The mechanism.
        clip: Largest loss L of a record (rigorous).
        noise: Noise multiplier z_l of the losses (rigorous).

    Raises:
        InputError: The noise of the losses does not exceed that of a step.
    """
    exact = LossQuery(np.inf, 0.0, spec.step_noise)
    if not mechanism_of(spec.name).is_calibrated:
        return replace(spec, loss_query=exact)
    return replace(spec, loss_query=LossQuery(clip, noise, first_step_noise(spec.step_noise, noise)))
