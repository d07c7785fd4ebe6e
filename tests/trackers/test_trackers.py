"""Trackers with the real libraries: their files are read back with the libraries' own readers."""

import gc
import importlib.util
import json
import os
import resource
import subprocess
import sys
import traceback
import warnings

import numpy as np
import pytest

from fedlane import Scenario, Simulation, simulate
from fedlane.cache import cache_folder
from fedlane.trackers import MEASURES, RoundRecord, make_tracker
from fedlane.trackers.values import flattened
from fedlane.validate import InputError
from support.terminal import fedlane as command

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the trackers' dependencies


def part(name):
    from support.parts import missing

    try:
        return __import__(name)
    except ModuleNotFoundError:
        missing(f"{name} is not installed (extra trackers)")


def events(folder):
    """Scalars by tag as {step: value}, and all tags, as TensorBoard reads them."""
    part("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    tags = read.Tags()
    for tag in tags["scalars"]:
        steps = [event.step for event in read.Scalars(tag)]
        assert len(steps) == len(set(steps)), f"{tag} has a step twice"
    return {tag: {e.step: e.value for e in read.Scalars(tag)} for tag in tags["scalars"]}, tags


def metrics(uri, tag):
    """The only run with that folder's tag, and its metric histories, as MLflow reads them."""
    part("mlflow")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("fedlane").experiment_id
        (run,) = [run for run in client.search_runs([experiment]) if run.data.tags["fedlane.folder"] == str(tag)]
        return run, {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}


def expected(run, measure):
    """{round: mean over seeds} from the run's table."""
    rows = [row for row in run.rounds.to_pylist() if row[measure] is not None]
    return {t: np.mean([row[measure] for row in rows if row["round"] == t]) for t in {row["round"] for row in rows}}


class Recorder:
    """A tracker that records its calls."""

    def __init__(self):
        self.calls, self.rounds = [], []

    def start(self, scenario, policy, seeds, *, round=0):
        self.calls.append(("start", scenario.name, policy, tuple(seeds), round))

    def round(self, record):
        self.rounds.append(record)

    def end(self, summary, state):
        self.calls.append(("end", None if summary is None else summary["rounds"], state))


def test_records_agree_with_the_tables():
    recorder = Recorder()
    run = simulate("quickstart", "random", rounds=20, seeds=[5, 6], trackers=[recorder])
    assert recorder.calls == [("start", "quickstart", "random", (5, 6), 0), ("end", 20, "finished")]
    assert [record.round for record in recorder.rounds] == list(range(20))
    rows = run.rounds.to_pylist()
    for record in recorder.rounds:
        mine = [row for row in rows if row["round"] == record.round]
        for measure in ("delay_s", "clock_s", "punctual"):
            assert getattr(record, measure) == pytest.approx([row[measure] for row in mine])
        tested = None if record.accuracy is None else record.accuracy.tolist()
        assert tested == (None if mine[0]["accuracy"] is None else [row["accuracy"] for row in mine])
        later = [row for row in run.client_rounds.to_pylist() if row["round"] == record.round]
        for r in range(2):
            assert record.max_queue[r] == max(row["queue"] for row in later if row["replica"] == r)
            assert record.epsilon[r] == max(row["epsilon"] for row in later if row["replica"] == r)
    assert set(recorder.rounds[9].values()) == set(MEASURES)
    without = Recorder()
    simulate("quickstart", rounds=2, learning=False, trackers=[without])
    assert set(without.rounds[0].values()) == set(MEASURES) - {"accuracy", "loss"}


def test_a_failed_run_is_reported_and_a_failed_tracker_is_dropped():
    class Broken(Recorder):
        def round(self, record):
            raise ZeroDivisionError

    broken = Broken()
    with pytest.raises(ZeroDivisionError):
        simulate("quickstart", rounds=5, learning=False, trackers=[broken])
    assert broken.calls[-1] == ("end", None, "failed")

    class Gone(Recorder):
        def round(self, record):
            raise InputError("the store is gone")

    gone, recorder = Gone(), Recorder()
    with pytest.warns(UserWarning, match="the store is gone; the run continues without this tracker"):
        simulate("quickstart", rounds=5, learning=False, trackers=[gone, recorder])
    assert len(recorder.rounds) == 5


def test_tensorboard_files(tmp_path):
    tracker = make_tracker(f"tensorboard:{tmp_path / 'logs'}", "mine", tmp_path)
    run = simulate("quickstart", "random", rounds=20, seeds=[2, 9], trackers=[tracker])
    scalars, tags = events(tmp_path / "logs" / "mine")
    for measure in ("delay_s", "clock_s", "punctual", "accuracy", "loss"):
        assert scalars[measure] == pytest.approx(expected(run, measure))
    assert sorted(scalars["accuracy"]) == [9, 19]
    assert scalars["epsilon"][19] <= run.summary["privacy"]["epsilon"]["largest"] + 1e-5
    (final,) = scalars["summary/final_accuracy"].values()
    assert final == pytest.approx(run.summary["final_accuracy"]["mean"])
    assert any(tag.startswith("scenario") for tag in tags["tensors"])
    each = [events(tmp_path / "logs" / "mine" / f"seed-{seed}")[0] for seed in (2, 9)]
    rows = run.rounds.to_pylist()
    for seed, one in zip((2, 9), each, strict=True):
        assert one["clock_s"] == pytest.approx({row["round"]: row["clock_s"] for row in rows if row["seed"] == seed})


@pytest.mark.slow
def test_mlflow_run(tmp_path):
    part("mlflow")
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    tracker = make_tracker(f"mlflow:{uri}", "mine", tmp_path / "o")
    run = simulate("quickstart", "random", rounds=20, seeds=[2, 9], trackers=[tracker])
    found, histories = metrics(uri, tmp_path / "o")
    assert (found.info.status, found.info.run_name) == ("FINISHED", "mine")
    for measure in ("delay_s", "clock_s", "punctual", "accuracy", "loss"):
        assert {m.step: m.value for m in histories[measure]} == pytest.approx(expected(run, measure))
    assert histories["summary/final_accuracy"][0].value == pytest.approx(run.summary["final_accuracy"]["mean"])
    rows = run.rounds.to_pylist()
    assert {m.step: m.value for m in histories["seed-9/clock_s"]} == pytest.approx(
        {row["round"]: row["clock_s"] for row in rows if row["seed"] == 9}
    )
    assert found.data.params["network.clients"] == "10"
    assert found.data.params["policy"] == "random"
    assert found.data.params["seeds"] == "2, 9"


KILLED = 9


def in_a_fork(work):
    """Do something in a process that is forked from this one, so that nothing is imported again; return its status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, because pytest-xdist has a thread
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_before_round(number):
    """Let this process end before a round as if it was killed, with TensorBoard's files written as far as they are."""
    step = Simulation.step

    def stop(simulation):
        if simulation.round == number:
            from torch.utils.tensorboard import SummaryWriter

            for one in gc.get_objects():
                if type(one) is SummaryWriter:  # isinstance asks objects for their class, and some warn
                    one.flush()
            os._exit(KILLED)
        step(simulation)

    Simulation.step = stop


@pytest.mark.slow
def test_a_resumed_run_has_every_step_once(tmp_path, monkeypatch):
    """The run is killed some rounds after its checkpoint, so that both trackers see those rounds twice."""
    part("mlflow")
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    track = ("--track", "tensorboard", "--track", f"mlflow:{uri}")
    options = ("run", "--rounds", "45", "--checkpoint-every", "20", "--quiet", "--out", "o", *track)
    import fedlane.trackers.mlflow

    monkeypatch.setattr(fedlane.trackers.mlflow, "FLUSH_S", 0.0)
    assert in_a_fork(lambda: (killed_before_round(33), command(*options, cwd=tmp_path))) == KILLED
    assert json.loads((tmp_path / "o" / "status.json").read_text()) == {"round": 20, "rounds": 45, "state": "running"}
    _, histories = metrics(uri, tmp_path / "o")
    assert max(m.step for m in histories["delay_s"]) == 32
    assert max(events(tmp_path / "o" / "tensorboard")[0]["delay_s"]) == 32
    command("run", "--resume", "o", "--quiet", *track, cwd=tmp_path, code=0)
    from fedlane import Run

    truth = expected(Run.load(tmp_path / "o"), "clock_s")
    scalars, _ = events(tmp_path / "o" / "tensorboard")
    assert scalars["clock_s"] == pytest.approx(truth)
    assert sorted(scalars["accuracy"]) == [9, 19, 29, 39, 44]
    found, histories = metrics(uri, tmp_path / "o")
    assert found.info.status == "FINISHED"
    assert [m.step for m in sorted(histories["clock_s"], key=lambda m: m.step)] == list(range(45))
    assert {m.step: m.value for m in histories["clock_s"]} == pytest.approx(truth)


@pytest.mark.slow
def test_compare_tracks_each_policy_without_network_access(tmp_path):
    """Neither library opens a connection or looks up a name."""
    part("mlflow")
    code = (
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto', 'socket.gethostbyname'):\n"
        "        print('OUTBOUND', event, arguments, file=sys.stderr)\n"
        "sys.addaudithook(hook)\n"
        "from fedlane.cli import main\n"
        "main()\n"
    )
    options = ("--policy", "lane", "--policy", "random", "--rounds", "5", "--no-learning", "--quiet", "--out", "o")
    track = ("--track", "tensorboard:logs", "--track", "mlflow:sqlite:///m.db")
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    # Under pytest or CI, MLflow disables its telemetry. Compiled kernels are taken from the cache of this test run.
    environment = {**kept, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache_folder().parent)}
    result = subprocess.run(
        [sys.executable, "-c", code, "compare", "quickstart", *options, *track],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (result.returncode, result.stdout) == (0, "")
    assert "OUTBOUND" not in result.stderr
    for policy in ("lane", "random"):
        assert len(events(tmp_path / "logs" / "o" / policy)[0]["delay_s"]) == 5
        run, _ = metrics(f"sqlite:///{tmp_path / 'm.db'}", tmp_path / "o" / policy)
        assert run.info.run_name == f"o/{policy}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord", "unknown tracker 'tensorbord' (did you mean 'tensorboard'?)"),
        ("mlflow:", "missing location after ':' in --track mlflow:"),
        ("mlflow:nowhere://x", "MLflow at nowhere://x cannot be used: "),
        ("tensorboard:/dev/null/x", "TensorBoard folder /dev/null/x/o cannot be written: Not a directory"),
    ],
)
def test_an_unusable_tracker_is_reported_in_one_line(text, message, tmp_path):
    part("mlflow")
    result = command("run", "--rounds", "2", "--no-learning", "--out", "o", "--track", text, cwd=tmp_path, code=2)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "o").exists()


def test_a_tracker_that_is_not_installed_is_reported_in_one_line(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("mlflow", "tensorboard") else find(name, *rest),
    )
    result = command("run", "--rounds", "2", "--track", "mlflow", cwd=tmp_path, code=2)
    assert result.stderr == "fedlane: --track mlflow needs the extra trackers: pip install 'fedlane[trackers]'\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard writes in a thread
def test_a_full_disk_ends_the_tracker_but_not_the_run(tmp_path):
    """A limit on file size makes the write fail as on a full disk."""
    part("tensorboard")
    simulate("quickstart", rounds=1, learning=False)  # writes caches before the limit is set
    tracker = make_tracker(f"tensorboard:{tmp_path}", "mine", tmp_path)
    line = f"TensorBoard folder {tmp_path / 'mine'} cannot be written: File too large; the run continues without this"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.warns(UserWarning, match=line):
            run = simulate("quickstart", rounds=300, learning=False, trackers=[tracker])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.summary["rounds"] == 300


def test_flattened_scenario():
    flat = flattened(Scenario.load("quickstart").with_values({"policies.lane.V": 3.0}))
    assert flat["network.clients"] == 10
    assert flat["network.interference_db"] == "[-5.0, 10.0]"
    assert flat["policies.lane.V"] == 3.0
    assert all(isinstance(value, str | int | float) for value in flat.values())


def test_values_of_a_round_record_leave_out_missing_measures():
    one = np.ones(1)
    record = RoundRecord(0, one, one, np.ones(1, np.int64), one, None, None, None)
    assert set(record.values()) == {"delay_s", "clock_s", "punctual", "max_queue"}
