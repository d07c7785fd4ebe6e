"""Comparison of tensors."""

import numpy as np


def assert_close(actual, expected, *, rtol=1.3e-6, atol=1e-5):
    """Insist that |actual - expected| <= atol + rtol |expected| and that the types are equal.

    `torch.testing.assert_close` does the same, and imports torch.distributed and SymPy at its first call, which takes
    1.5 s of processor time.
    """
    assert actual.dtype == expected.dtype
    assert actual.device == expected.device
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.detach().cpu().numpy(), expected.detach().cpu().numpy(), rtol=rtol, atol=atol)
