"""Policies of other authors, each in its own file. docs/policies.md lists how each differs from its publication."""
