"""The learning plane: data, models and local training. Needs NumPy (and, to train, PyTorch) alone."""

import os

# PyTorch's threads spin while they wait for each other. Where other programs want the cores too, that makes small
# products several times slower; sleeping costs little. Read when PyTorch is first imported; a user's own choice stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
