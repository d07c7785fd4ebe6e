"""Policies of other authors, each in its own file. docs/rivals.md lists how each differs from its publication."""
