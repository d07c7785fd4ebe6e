"""The learning plane: data, models and local training. It needs only NumPy, and PyTorch for training."""

import os

# PyTorch's threads spin while they wait for each other. If other programs use the cores as well, that makes small
# products several times slower; sleeping costs little. PyTorch reads this on import. A user's setting is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
