"""The same policies and mechanisms in a real federation: Flower, over real links. Needs the extra `flower`."""
