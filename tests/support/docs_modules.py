"""The Python modules in docs/, which only mkdocs imports otherwise."""

import importlib.util
from pathlib import Path

from support.parts import missing

DOCS = Path(__file__).parents[2] / "docs"


def load_docs_module(name):
    """Import docs/NAME.py; a test is skipped where the extra `docs` is missing, and fails there in CI."""
    for package in ("mkdocs", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed (extra docs)")
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
