"""The learning plane: data, models and local training. Needs NumPy (and, to train, PyTorch) alone."""
