"""The server of a Flower federation: the strategy, the clients it knows, and its state on disk."""
