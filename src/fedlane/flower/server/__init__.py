"""The server's side of a Flower federation: the strategy, its view of the clients, and its state on disk."""
