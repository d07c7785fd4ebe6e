"""Old import paths that the documentation once named, kept for programs that use them.

Importing an old path gives a module with the names of the new module, and the old names of renamed objects.
"""

import importlib
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "fedlane.flower.certificates": "fedlane.flower.testbed.certificates",
    "fedlane.flower.ledgers": "fedlane.flower.client.ledger_file",
    "fedlane.flower.mod": "fedlane.flower.client.mod",
    "fedlane.flower.preload": "fedlane.flower.node.preload",
    "fedlane.flower.proxy": "fedlane.flower.testbed.proxy",
    "fedlane.flower.strategy": "fedlane.flower.server.strategy",
    "fedlane.flower.supernode": "fedlane.flower.node.supernode",
    "fedlane.flower.switch": "fedlane.flower.client.switch",
    "fedlane.flower.weights": "fedlane.flower.client.weights",
    "fedlane.network.air": "fedlane.network.interface",
    "fedlane.network.delay": "fedlane.network.radio",
}
"""Old module -> new module."""
RENAMED = {
    "fedlane.network.air": {"Air": "Network"},
    "fedlane.network.delay": {"AirInterface": "RadioNetwork"},
}
"""Old module -> {old name: new name}."""


class MovedModules(MetaPathFinder, Loader):
    """Finder and loader of the old paths in `MOVED`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path, and None for any other."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill an old module with the names of the new one."""
        old = module.__name__
        home = vars(importlib.import_module(MOVED[old]))
        vars(module).update({name: value for name, value in home.items() if not name.startswith("__")})
        vars(module).update({name: home[now] for name, now in RENAMED.get(old, {}).items()})
