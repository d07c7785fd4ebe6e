"""The examples in docstrings run."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedlane
from fedlane.scheduling import registry

ROOT = Path(fedlane.__file__).parent


@pytest.mark.slow
def test_the_examples_in_docstrings_run(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))  # examples may register policies
    for number, path in enumerate(path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text()):
        name = ".".join(("fedlane", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert result.attempted > 0, name
        assert result.failed == 0, name
