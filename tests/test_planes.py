"""The map of the package: which room may import which, without cycles, and what importing it must not load."""

import ast
import importlib.util
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import fedlane
from fedlane.moved import MOVED, RENAMED
from fedlane.scenario import Scenario
from fedlane.simulation.setup import prepare
from support.parts import missing

ROOT = Path(fedlane.__file__).parent
MODULES = {
    ".".join(("fedlane", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

NEUTRAL = {
    *("records", "rng", "validate", "cache", "files", "parquet_tables", "intervals", "number_text", "targets"),
    *("matching", "compiled", "city_map", "data_tables", "loss_records", "delay_predictions"),
}
PLANES = {"network", "scheduling", "learning", "privacy", "theory"}
JOINED = NEUTRAL | PLANES | {"scenario", "simulation"}
DRIVES_ROUNDS = JOINED | {"rounds"}

MAY_IMPORT = {
    **dict.fromkeys(NEUTRAL, NEUTRAL),
    **dict.fromkeys(PLANES, NEUTRAL),
    "rounds": NEUTRAL | {"scheduling"},  # knows no world; scheduling does not know it
    "scenario": NEUTRAL,
    "trackers": NEUTRAL,
    "report": NEUTRAL,  # reads results, never simulates
    "simulation": NEUTRAL | PLANES | {"rounds", "scenario", "trackers"},
    "gym": DRIVES_ROUNDS,
    "experiments": DRIVES_ROUNDS | {"report"},
    "flower": {"validate"},  # only where Flower is not installed
    "flower.protocol": NEUTRAL,
    "flower._adapted": NEUTRAL,
    "flower.client": NEUTRAL | PLANES | {"flower.protocol"},
    "flower.node": NEUTRAL | PLANES | {"flower.protocol", "flower._adapted", "flower.client"},
    "flower.server": DRIVES_ROUNDS | {"flower.protocol", "flower._adapted"},
    "flower.testbed": JOINED | {"flower.protocol", "flower._adapted", "flower.client", "flower.node", "flower.server"},
    "cli": DRIVES_ROUNDS | {"trackers", "report", "gym", "experiments", "flower.client", "flower.testbed"},
    "moved": set(),
    "fedlane": {"moved"},
}
"""Room -> rooms that its modules may import, besides itself. Every import counts, also one inside a function."""
MAY_ANNOTATE_WITH = {
    "trackers": {"scenario", "simulation"},
    "flower": {"flower.client", "flower.server"},  # its names are loaded when they are first used
    "fedlane": {"experiments", "matching", "rounds", "scenario", "scheduling", "simulation"},  # likewise
}
"""Room -> further rooms that it may import under ``if TYPE_CHECKING``."""


class Import(NamedTuple):
    """An import of one FedLane module by another."""

    importer: str
    imported: str
    type_only: bool


def room_of(module):
    """The longest entry of the map that a module belongs to, for example flower.client or scheduling."""
    parts = module.split(".")[1:]
    rooms = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((room for room in rooms if room in MAY_IMPORT), "" if parts else "fedlane")


def imports_of(module):
    """All imports of FedLane modules in a module's file, at any depth."""
    type_only = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            type_only.update(id(inner) for statement in node.body for inner in ast.walk(statement))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "fedlane"]
            yield from (Import(module, name, id(node) in type_only) for name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import, which this test does not follow"
            yield from (
                Import(module, imported_from(node.module, alias.name), id(node) in type_only)
                for alias in node.names
                if node.module.split(".")[0] == "fedlane" and (node.module, alias.name) != ("fedlane", "__version__")
            )


@pytest.fixture(scope="module")
def imports():
    return [found for module in MODULES for found in imports_of(module)]


def imported_from(package, name):
    """The module behind ``from package import name``; names of ``fedlane`` itself belong to their home."""
    if package == "fedlane" and name in fedlane._HOME:
        return fedlane._HOME[name]
    return f"{package}.{name}" if f"{package}.{name}" in MODULES else package


@pytest.mark.slow
def test_a_room_imports_only_the_rooms_that_the_map_allows(imports):
    wrong = []
    for importer, imported, type_only in imports:
        room = room_of(importer)
        allowed = {room, *MAY_IMPORT.get(room, ()), *(MAY_ANNOTATE_WITH.get(room, ()) if type_only else ())}
        if room == "" or room_of(imported) not in allowed:
            wrong.append(f"{importer} imports {imported}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_no_import_closes_a_cycle(imports):
    """Imports inside functions count as well: they would only hide the cycle."""
    graph = defaultdict(set)
    for importer, imported, type_only in imports:
        if not type_only and importer != imported:
            graph[importer].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_no_pickle_anywhere():
    for path in MODULES.values():
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


def test_importing_fedlane_loads_nothing_heavy():
    heavy = ["numba", "scipy", "pyarrow", "torch", "pydantic", "matplotlib", "typer"]
    code = f"import sys, fedlane; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_the_learning_plane_needs_only_numpy_and_torch():
    code = (
        "import sys\n"
        "for m in 'numba scipy pyarrow pydantic matplotlib typer rich dp_accounting safetensors'.split():\n"
        "    sys.modules[m] = None\n"
        "import pkgutil, importlib, fedlane.learning as plane\n"
        "for m in pkgutil.iter_modules(plane.__path__):\n"
        "    if m.name != 'cpu_kernels':\n"
        "        importlib.import_module(f'fedlane.learning.{m.name}')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_every_public_name_can_be_loaded():
    for name in fedlane.__all__:
        assert getattr(fedlane, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fedlane.nonsense
    assert set(dir(fedlane)) == set(fedlane.__all__)


@pytest.mark.slow
def test_an_old_import_path_gives_the_new_module_s_names():
    for old in sorted(MOVED):
        if "flower" in old and importlib.util.find_spec("flwr") is None:
            missing("flwr is not installed (extra flower)")
        old_module, new_module = importlib.import_module(old), importlib.import_module(MOVED[old])
        names = {name: name for name in vars(new_module) if not name.startswith("__")} | RENAMED.get(old, {})
        for old_name, new_name in names.items():
            assert getattr(old_module, old_name) is getattr(new_module, new_name), (old, old_name)


@pytest.mark.slow
def test_an_old_name_is_the_new_one():
    def named(path):
        module, name = path.split(":")
        return getattr(importlib.import_module(module), name)

    for old, new in (
        ("fedlane.network.air:Air", "fedlane.network:Network"),
        ("fedlane.network.delay:AirInterface", "fedlane.network:RadioNetwork"),
        ("fedlane.learning.federation:Federation", "fedlane.learning.federation:FederationBatch"),
        ("fedlane.learning.replay:Schedule", "fedlane.learning.schedule:Schedule"),
        ("fedlane.learning.replay:learn", "fedlane.learning.schedule:learn"),
        ("fedlane.theory.convergence:Setting", "fedlane.theory.convergence:BoundInputs"),
        ("fedlane.privacy.paper:leak", "fedlane.privacy.paper:leakage_lower_bound"),
    ):
        assert named(old) is named(new), old
    setup = prepare(Scenario.load("quickstart"), [0])
    assert setup.air is setup.network
