"""The three suites, what each test costs in processor time, and a cache that belongs to one test run.

A test belongs to `make quick` unless it is marked ``slow`` (`make test`) or ``long`` (`make long`). `--suite` selects
one. A test that takes more processor time than its suite allows fails, on a busy machine as on a quiet one, because
processor time does not run while a process waits. The sum over all processes is printed at the end.
"""

import importlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SUITES = {"quick": "not slow and not long", "test": "not long", "long": "long", "all": ""}
"""What each suite selects by markers."""
LIMITS_S = {"quick": 2.0, "test": 25.0}
"""Processor seconds that one test may take.

They are several times what the slowest tests need: processor time grows on a machine whose cores are shared.
"""
SHARED_LIMITS_S = {"quick": 6.0, "test": 60.0}
"""Processor seconds that a fixture may take which several tests share."""
IMPORTED_FIRST = ("numba", "pandas", "pyarrow.parquet", "torch", "fedlane.simulation.run")
"""What every worker imports before its first test, which would otherwise pay for it."""
WHOLE_FILE = re.compile(r"^pytestmark = .*\bmark\.(slow|long)\b", re.MULTILINE)
TOO_MUCH = "more than this suite allows; make it cheaper, or mark it (tests/support/suites.py)"
SLOWEST = 12
"""Number of tests that are listed at the end with their processor time."""


def processor_s():
    """Return the processor time of this process and of those of its children that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def pytest_addoption(parser):
    parser.addoption("--suite", choices=SUITES, default="all", help="the tests of `make quick`, `test` or `long`")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    suite = config.getoption("--suite")
    if SUITES[suite]:
        chosen = config.option.markexpr
        config.option.markexpr = f"({SUITES[suite]}) and ({chosen})" if chosen else SUITES[suite]
    if not _is_worker(config):
        _make_cache(config)
    config.pluginmanager.register(Costs(suite), "costs")


def pytest_sessionstart(session):  # before the workers start
    if not _is_worker(session.config) and session.config.getoption("--suite") != "all":
        _compile_kernels(session.config)


def _is_worker(config):
    return hasattr(config, "workerinput")


def _make_cache(config):
    """Give this run an empty cache, which its workers and all processes of tests inherit.

    Results are then computed by the code that is tested, not read from what an earlier version left in the user's
    cache. What is no result of FedLane stays where it is: downloaded data sets, packages and matplotlib's fonts.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(tempfile.mkdtemp(prefix="fedlane-cache-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    (folder / "fedlane").mkdir()
    for data in ("fashion-mnist", "cifar10", "cifar-10-batches-py"):
        if (base / "fedlane" / data).is_dir():
            (folder / "fedlane" / data).symlink_to(base / "fedlane" / data)
    os.environ.setdefault("MPLCONFIGDIR", str(base / "matplotlib"))
    os.environ.setdefault("PIP_CACHE_DIR", str(base / "pip"))
    os.environ["XDG_CACHE_HOME"] = str(folder)


def _compile_kernels(config):
    """Compile all kernels unless an earlier run has, so that no test pays for it and no two workers do the same."""
    from fedlane import compiled

    digest = compiled.sources_digest()
    if config.cache.get("fedlane/kernels", "") != digest:
        print("compiling kernels (first run only)", flush=True)
        code = "from support.suites import compile_all; compile_all()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        config.cache.set("fedlane/kernels", digest)


def compile_all():
    """Compile every kernel for its usual types, or load it from Numba's cache."""
    from fedlane import compiled

    package = Path(compiled.__file__).parent
    for path in sorted(path for pattern in compiled.SOURCES for path in package.glob(pattern)):
        name = ".".join(("fedlane", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        for kernel in vars(importlib.import_module(name)).values():
            if hasattr(kernel, "usual_types"):
                compiled.compile_usual(kernel)


def pytest_collection_finish(session):
    """Import what many tests need."""
    if session.config.getoption("--suite") != "all" and session.items:
        for name in IMPORTED_FIRST:
            importlib.import_module(name)


def pytest_ignore_collect(collection_path, config):
    """Do not even import a file all of whose tests belong to another suite."""
    if config.getoption("--suite") != "quick" or collection_path.suffix != ".py":
        return None
    return bool(WHOLE_FILE.search(collection_path.read_text(encoding="utf-8"))) or None


class Costs:
    """Measures the processor time of tests, of the fixtures that they share, and of the whole run."""

    def __init__(self, suite):
        self.limit_s, self.shared_limit_s = LIMITS_S.get(suite), SHARED_LIMITS_S.get(suite)
        self.before_s = self.spent_s = self.shared_s = 0.0
        self.tests, self.workers_s = {}, 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        before = processor_s()
        result = yield
        took = processor_s() - before
        if fixturedef.scope != "function":
            self.shared_s += took
            if self.shared_limit_s is not None and took > self.shared_limit_s:
                pytest.fail(f"fixture {fixturedef.argname}: {took:.1f} s of processor time, {TOO_MUCH}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.before_s, self.spent_s, self.shared_s = processor_s(), 0.0, 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        now = processor_s()
        report.processor_s = now - self.before_s
        self.before_s = now
        self.spent_s += report.processor_s
        own = self.spent_s - self.shared_s
        if report.when == "call" and report.passed and self.limit_s is not None and own > self.limit_s:
            report.outcome, report.longrepr = "failed", f"{own:.1f} s of processor time, {TOO_MUCH}"
        return report

    def pytest_runtest_logreport(self, report):
        self.tests[report.nodeid] = self.tests.get(report.nodeid, 0.0) + getattr(report, "processor_s", 0.0)

    def pytest_sessionfinish(self, session):
        if _is_worker(session.config):
            session.config.workeroutput["processor_s"] = processor_s()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.workers_s += getattr(node, "workeroutput", {}).get("processor_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        total = self.workers_s + (processor_s() if not self.workers_s else _own_s())
        tests = sum(self.tests.values())
        terminalreporter.section(f"{total:.0f} s of processor time, {tests:.0f} s of it in {len(self.tests)} tests")
        for name, took in sorted(self.tests.items(), key=lambda pair: -pair[1])[:SLOWEST]:
            terminalreporter.write_line(f"{took:7.2f} s  {name}")


def _own_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
