"""The app's folder for `flwr run`: a few lines that import the app from the installed package."""

from pathlib import Path

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedlane-testbed"
version = "1.0.0"
description = "FedLane's testbed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedlane"

[tool.flwr.app.components]
serverapp = "fedlane_testbed.server_app:app"
clientapp = "fedlane_testbed.client_app:app"

[tool.flwr.app.config]
plan = ""
clients = 1
seed = 0
"""


def write_app(folder: Path) -> Path:
    """Create the app in a new folder, and return the folder."""
    package = folder / "fedlane_testbed"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP)
    (package / "__init__.py").write_text("")
    for side in ("server_app", "client_app"):
        (package / f"{side}.py").write_text(
            f'"""See fedlane.flower.testbed.app.{side}."""\n\nfrom fedlane.flower.testbed.app.{side} import app\n\n'
            '__all__ = ["app"]\n'
        )
    return folder
