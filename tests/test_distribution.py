"""The package as users get it: sdist and wheel, installed into an empty environment, and the example Flower app."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
SDIST = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"


def environment(**more):
    """This process's variables, without those that lead Python to the checkout."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "COLUMNS": "80", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def called(*words, cwd, **more):
    """Run a program and return what it printed."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment(**more))
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def built_wheel(source, folder):
    """Build a wheel with the tools of this environment, and return its path."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir")
    called(sys.executable, "-m", "pip", "wheel", *options, folder, source, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, because a build leaves files behind."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for left in (*folder.rglob("__pycache__"), *folder.rglob("*.egg-info")):
        shutil.rmtree(left)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    return built_wheel(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """An environment that holds nothing but the wheel. Other packages are found where this environment has them, but
    not its installation of FedLane, which consists of a .pth file and is therefore not seen from elsewhere."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    called(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    called(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel, cwd="/")
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def contents(wheel):
    """The files of a wheel, without its list of digests."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_the_wheel_holds_everything_that_a_run_needs(wheel):
    names = set(contents(wheel))
    package = ROOT / "src" / "fedlane"
    for pattern in ("**/*.py", "scenario/presets/*.toml", "report/assets/*", "data/**/*", "py.typed"):
        files = (path for path in package.glob(pattern) if path.is_file())
        expected = {f"fedlane/{path.relative_to(package).as_posix()}" for path in files}
        assert expected
        assert expected <= names, pattern
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
    assert wheel.stat().st_size < 8e6


def test_the_sdist_builds_the_same_wheel(checkout, wheel, tmp_path):
    dist = tmp_path / "dist"
    dist.mkdir()
    name = called(sys.executable, "-c", SDIST, dist, cwd=checkout).splitlines()[-1]
    with tarfile.open(dist / name) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    (tmp_path / "again").mkdir()
    assert contents(built_wheel(source, tmp_path / "again")) == contents(wheel)


def test_the_wheel_works_in_an_empty_environment(empty, tmp_path):
    """Presets, the embedded data set, the page's parts and the testbed's app come from the wheel."""
    fedlane = empty / "bin" / "fedlane"
    where = called(empty / "bin" / "python", "-c", "import fedlane; print(fedlane.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(empty)
    listed = json.loads(called(fedlane, "list", "scenarios", "--json", cwd=tmp_path))
    assert "quickstart" in [next(iter(row.values())) for row in listed]
    options = ("--policy", "random", "--no-learning", "--rounds", "3", "--quiet", "--out", "run")
    called(fedlane, "run", "quickstart", *options, cwd=tmp_path)
    session = json.loads((tmp_path / "run" / "provenance.json").read_text())["sessions"][0]
    assert (session["commit"], session["modified"]) == (None, None)  # not a checkout
    assert session["versions"]["fedlane"] == called(fedlane, "--version", cwd=tmp_path).split()[-1]
    called(fedlane, "report", "run", cwd=tmp_path)
    page = (tmp_path / "run" / "report.html").read_text()
    assert len(page) > 100_000
    code = (
        "import fedlane.flower.testbed.app.server_app, fedlane.flower.testbed.app.client_app\n"
        "from fedlane.learning.datasets import load_dataset\n"
        "load_dataset('fashion-mnist-mini')"
    )
    called(empty / "bin" / "python", "-c", code, cwd=tmp_path)
    assert (empty / "bin" / "fedlane-supernode").is_file()


@pytest.mark.parametrize("app", ["example", "testbed"])
def test_flower_builds_the_apps(app, tmp_path):
    from fedlane.flower.testbed.app.folder import write_app

    folder = tmp_path / "app"
    if app == "example":
        shutil.copytree(ROOT / "examples" / "flower-app", folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        write_app(folder)
    flwr = Path(sys.executable).with_name("flwr")
    more = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT / "src")}
    assert "Successfully built" in called(flwr, "build", "--app", folder, cwd=tmp_path, **more)
    (bundle,) = tmp_path.glob("*.fab")
    package = "lane_app" if app == "example" else "fedlane_testbed"
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    assert {"pyproject.toml", f"{package}/server_app.py", f"{package}/client_app.py"} <= set(names)
