"""Artifacts: packed here, unpacked and rebuilt elsewhere."""

import csv
import hashlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pyarrow.parquet as pq
import pytest

import fedlane as package
from fedlane import Run, Scenario, Simulation, simulate
from fedlane.experiments.artifact import changed_files, pack_artifact
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError
from support.forked import Forked
from support.terminal import fedlane

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SCENARIO = Scenario.load("quickstart").with_values({"rounds": 6, "network.clients": 5, "learning.evaluate_every": 2})


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A folder with two runs, as `compare` writes it; one of them learns."""
    root = tmp_path_factory.mktemp("comparison")
    simulate(SCENARIO, "lane", seeds=2).save(root / "o" / "lane")
    simulate(SCENARIO, "mamab-om:V=3", seeds=2, learning=False).save(root / "o" / "mamab-om-V-3")
    return root / "o"


def unpacked(archive, folder):
    opened = zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive)  # noqa: SIM115
    with opened:
        if isinstance(opened, tarfile.TarFile):
            opened.extractall(folder, filter="data")
        else:
            opened.extractall(folder)
    return folder / "artifact"


def names_in(archive):
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


def rebuilt(folder, *options, cwd):
    """Run the artifact's script in a forked process."""

    def program():
        sys.argv = ["rebuild.py", *map(str, options)]
        runpy.run_path(str(folder / "rebuild.py"), run_name="__main__")

    with Forked(program, cwd=cwd) as script:
        return script.wait()


def test_an_artifact_is_rebuilt_elsewhere(comparison, tmp_path):
    archive = tmp_path / "paper.zip"
    line = fedlane("artifact", comparison, "--out", archive, cwd=tmp_path, code=0).stdout
    assert f"(2 runs, 30 files, {archive.stat().st_size / 1e6:.1f} MB)" in line
    elsewhere = tmp_path / "elsewhere"
    folder = unpacked(archive, elsewhere)
    shutil.move(folder, elsewhere / "renamed")
    done = rebuilt(elsewhere / "renamed", "new", cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything agrees" in done.stdout
    before, after = elsewhere / "renamed", elsewhere / "new"
    for name in ("lane", "mamab-om-V-3"):
        packed, again = Run.load(before / "runs" / name), Run.load(after / "runs" / name)
        assert packed.assignments.equals(again.assignments)
        assert packed.client_rounds.equals(again.client_rounds)
        assert packed.ledger == again.ledger
    tables = [list(csv.DictReader((at / "tables" / "seeds.csv").read_text().splitlines())) for at in (before, after)]
    for packed, again in zip(*tables, strict=True):
        assert packed["cumulative_delay_s"] == again["cumulative_delay_s"]
        accuracy = packed["final_accuracy"], again["final_accuracy"]
        assert accuracy == ("", "") or abs(float(accuracy[0]) - float(accuracy[1])) <= 0.005
    for figure in ("time.pdf", "time.png", "accuracy.pdf", "accuracy.png"):
        assert (after / "figures" / figure).stat().st_size > 5_000


def test_a_packed_run_that_was_changed_does_not_agree(comparison, tmp_path):
    pack_artifact([comparison / "mamab-om-V-3"], tmp_path / "a.zip")
    folder = unpacked(tmp_path / "a.zip", tmp_path)
    path = folder / "runs" / "mamab-om-V-3" / "assignments.parquet"
    table = pq.read_table(path)
    delay = table["delay_s"].to_numpy() + 1e-12
    pq.write_table(table.set_column(table.column_names.index("delay_s"), "delay_s", [delay]), path)
    refused = rebuilt(folder, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "rebuild: runs/mamab-om-V-3/assignments.parquet differs from the manifest (1 of the files do)\n"
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["runs/mamab-om-V-3/assignments.parquet"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = rebuilt(folder, cwd=tmp_path)
    assert done.returncode == 1
    assert "assignments and delays: DIFFERS" in done.stdout
    assert "NOT everything agrees" in done.stdout


def test_a_policy_in_the_current_folder_is_packed(tmp_path):
    """It is rebuilt by a process that has imported nothing."""
    shutil.copy(EXAMPLES / "patient_policy.py", tmp_path)
    options = ("--policy", "patient_policy:Patient", "--rounds", "4", "--no-learning", "--quiet", "--out", "run")
    fedlane("run", *options, cwd=tmp_path, code=0)
    result = fedlane("artifact", "run", "--out", "a.zip", cwd=tmp_path, code=0)
    assert "patient_policy.py is packed" in " ".join(result.stderr.split())
    script = unpacked(tmp_path / "a.zip", tmp_path / "elsewhere") / "rebuild.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_artifact_states_scenarios_seeds_and_versions(comparison, tmp_path):
    packed = pack_artifact([comparison / "lane"], tmp_path / "a.tgz")
    assert (packed.size, packed.runs) == ((tmp_path / "a.tgz").stat().st_size, ["lane"])
    with tarfile.open(tmp_path / "a.tgz") as archive:
        files = {member.name.removeprefix("artifact/"): archive.extractfile(member).read() for member in archive}
    assert len(files) == packed.files
    assert changed_files(unpacked(tmp_path / "a.tgz", tmp_path)) == []
    manifest = json.loads(files["manifest.json"])
    assert manifest["runs"]["lane"]["seeds"] == [0, 1]
    assert manifest["versions"]["fedlane"] == package.__version__
    assert manifest["files"] == {
        name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items()) if name != "manifest.json"
    }
    assert "seeds 0, 1" in files["README.md"].decode()
    assert f"fedlane=={package.__version__}\n" in files["requirements.txt"].decode()
    assert "+" not in files["requirements.txt"].decode()
    rows = list(csv.DictReader(io.StringIO(files["tables/summary.csv"].decode())))
    summary = Run.load(comparison / "lane").summary
    assert {row["measure"]: row["mean"] for row in rows}["mean_round_s"] == str(summary["mean_round_s"]["mean"])
    assert "model.safetensors" not in " ".join(files)


def test_files_of_a_comparison_are_packed_as_they_are(comparison, tmp_path):
    folder = shutil.copytree(comparison, tmp_path / "o")
    (folder / "comparison.csv").write_text("policy,delay\n")
    values = json.loads(fedlane("artifact", "o", "--out", "a.zip", "--json", cwd=tmp_path, code=0).stdout)
    assert values["runs"] == ["lane", "mamab-om-V-3"]
    assert values["bytes"] == (tmp_path / "a.zip").stat().st_size
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("artifact/tables/comparison.csv") == b"policy,delay\n"


@pytest.mark.parametrize(
    "name", ["...", "..evil", "-rf", "a b", "a\nb", "~", "C:x", "\u202egpj", "con.\u00e9", "\\..\\x"]
)
def test_hostile_names_stay_inside_the_archive(comparison, name, tmp_path):
    folder = shutil.copytree(comparison / "mamab-om-V-3", tmp_path / "o" / name)
    shutil.copy(folder / "summary.json", folder / "..secret")
    pack_artifact([folder, comparison / "mamab-om-V-3"], tmp_path / "a.zip")
    for member in names_in(tmp_path / "a.zip"):
        path = PurePosixPath(member)
        assert path.parts[0] == "artifact"
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert not set(member) & set("\\:\n~ ")
        assert member.isprintable()
    assert not [member for member in names_in(tmp_path / "a.zip") if "secret" in member]
    unpacked(tmp_path / "a.zip", tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere" / "artifact" / "runs").iterdir())) == 2


def test_runs_of_one_name_are_numbered(comparison, tmp_path):
    shutil.copytree(comparison / "lane", tmp_path / "x" / "lane")
    assert pack_artifact([comparison / "lane", tmp_path / "x" / "lane"], tmp_path / "a.zip").runs == ["lane", "lane-2"]


def test_what_cannot_be_packed_is_one_line(comparison, tmp_path):
    shutil.copytree(comparison / "lane", tmp_path / "linked")
    (tmp_path / "linked" / "ledger.jsonl").unlink()
    (tmp_path / "linked" / "ledger.jsonl").symlink_to("/etc/hostname")
    shutil.copytree(comparison / "lane", tmp_path / "flower")
    path = tmp_path / "flower" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "flower": {}}))
    half = Simulation(SCENARIO.with_values({"privacy.mechanism": "none"}), "lane", [0])
    half.play(until=2)
    RunFolder.create(tmp_path / "half").write(half.result(), checkpoint=half.checkpoint())
    (tmp_path / "folder.zip").mkdir()
    for words, message in (
        (("linked", "--out", "a.zip"), "linked/ledger.jsonl cannot be packed: it is a link"),
        (("flower", "--out", "a.zip"), "flower cannot be packed: it was recorded by a real federation (Flower)"),
        (("half", "--out", "a.zip"), "half cannot be packed: it is not finished (2 of 6 rounds)"),
        (("linked", "--out", "a.rar"), "artifact a.rar must end in .zip, .tar.gz or .tgz"),
        (("linked", "--out", "folder.zip"), "artifact folder.zip is a folder: give the path of a file"),
        ((comparison, "--out", "nowhere/a.zip"), "artifact nowhere/a.zip cannot be written: No such file"),
        (("nothing", "--out", "a.zip"), "run folder nothing does not exist"),
    ):
        result = fedlane("artifact", *words, cwd=tmp_path, code=2)
        assert result.stderr.startswith(f"fedlane: {message}"), result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("a.*"))


def test_an_existing_archive_is_kept_unless_overwriting_is_asked_for(comparison, tmp_path):
    (tmp_path / "a.zip").write_text("mine")
    result = fedlane("artifact", comparison, "--out", "a.zip", cwd=tmp_path, code=2)
    assert result.stderr == "fedlane: artifact a.zip exists: choose another file, or replace it with --overwrite\n"
    assert (tmp_path / "a.zip").read_text() == "mine"
    fedlane("artifact", comparison, "--out", "a.zip", "--overwrite", cwd=tmp_path, code=0)
    assert zipfile.is_zipfile(tmp_path / "a.zip")


def test_a_hostile_manifest_reads_nothing_outside(comparison, tmp_path):
    pack_artifact([comparison / "lane"], tmp_path / "a.zip")
    folder = unpacked(tmp_path / "a.zip", tmp_path)
    assert changed_files(folder) == []
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("../../../etc/hostname", "/etc/hostname"):
        (folder / "manifest.json").write_text(json.dumps({**manifest, "files": {name: "0"}}))
        with pytest.raises(InputError, match="its manifest names"):
            changed_files(folder)
    for text in ("[]", "{", '{"format": 1, "files": 3}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="is not an artifact"):
            changed_files(folder)
