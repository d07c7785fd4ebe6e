"""Helpers that several tests share; `pythonpath` in pyproject.toml makes this package importable."""
