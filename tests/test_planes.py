"""The architecture, enforced: planes import only the neutral modules, and the package is lazy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedlane

ROOT = Path(fedlane.__file__).parent
NEUTRAL = {"cache", "files", "intervals", "matching", "records", "rng", "validate"}
PLANES = ("network", "scheduling", "learning", "privacy", "theory")


def imports_of(path):
    """fedlane modules that a file imports at any level."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedlane":
            names = [a.name for a in node.names] if node.module == "fedlane" else [node.module.split(".")[1]]
            yield from names
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("fedlane."))


@pytest.mark.parametrize("plane", [plane for plane in PLANES if (ROOT / plane).exists()])
def test_a_plane_imports_only_neutral_modules_and_itself(plane):
    for path in (ROOT / plane).rglob("*.py"):
        strange = set(imports_of(path)) - NEUTRAL - {plane, "__version__"}
        assert not strange, f"{path.relative_to(ROOT)} imports {sorted(strange)}"


def test_neutral_modules_import_only_each_other():
    for name in NEUTRAL:
        for path in (ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / f"{name}.py"]:
            assert set(imports_of(path)) <= NEUTRAL


def test_the_report_plane_never_simulates():
    for path in (ROOT / "report").rglob("*.py"):
        assert not set(imports_of(path)) & {"simulation", "experiments", "network", "scheduling", "learning"}


def test_no_pickle_anywhere():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


def test_importing_fedlane_loads_nothing_heavy():
    heavy = ["numba", "scipy", "pyarrow", "torch", "pydantic", "matplotlib", "typer"]
    code = f"import sys, fedlane; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_learning_plane_needs_numpy_and_torch_alone():
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


def test_every_public_name_is_there():
    for name in fedlane.__all__:
        assert getattr(fedlane, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fedlane.nonsense
    assert set(dir(fedlane)) == set(fedlane.__all__)
