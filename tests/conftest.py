"""Fixtures that all tests share, and the order in which tests run."""

import os
import subprocess
import sys

import pytest

from support.parts import DATA, missing

pytest_plugins = ["support.suites"]
os.environ["OMP_NUM_THREADS"] = "1"  # two workers share two cores; read when PyTorch is first imported
BIG_DATA = {"fashion_mnist", "cifar10"}
"""Fixtures with data sets that take seconds to load."""


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items):
    """Start with the tests that wait for servers, so that the other worker computes meanwhile; end with quick ones."""

    def place(item):
        group = item.get_closest_marker("xdist_group")
        slow = item.get_closest_marker("slow") is not None
        return (not (slow and group is not None and group.args == ("flower",)), not slow)

    for item in items:
        if not BIG_DATA.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.slow)
    items.sort(key=place)


@pytest.fixture
def one_thread():
    """Sums of matrix products depend on the number of threads."""
    from fedlane.learning.strict import one_thread

    with one_thread():
        yield


@pytest.fixture(scope="session")
def one_browser():
    from support.browsing import shared_chromium

    with shared_chromium() as in_use:
        yield in_use


@pytest.fixture
def browser(one_browser):
    with one_browser() as running:
        yield running


@pytest.fixture(scope="session")
def fashion_mnist():
    from fedlane.learning.datasets import dataset_info, load_dataset, locate

    if locate(dataset_info("fashion-mnist")) is None:
        missing("full Fashion-MNIST is not here (Debian: dataset-fashion-mnist)")
    return load_dataset("fashion-mnist")


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    from fedlane.learning.datasets import dataset_info, load_dataset, locate

    if locate(dataset_info("cifar10")) is None:
        unpack = DATA / "cifar10" / "unpack"
        if not unpack.is_file():
            missing("CIFAR-10 is not here (FEDLANE_DATA)")
        folder = tmp_path_factory.mktemp("cifar")
        subprocess.run([sys.executable, str(unpack), str(folder)], check=True, capture_output=True)
        os.environ["FEDLANE_DATA"] = str(folder)
    return load_dataset("cifar10")
