"""What the first run of a process computes and the others find, so that no test is charged for it."""

import pytest

from fedlane import simulate


@pytest.fixture(scope="session", autouse=True)
def calibrated():
    """The noise and the epsilons of the preset `quickstart`, and the imports that a run needs."""
    simulate("quickstart", "random", rounds=1, learning=False)
