"""Artifacts: an archive with runs, their tables and figures, and a script that rebuilds them elsewhere."""

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedlane.experiments.artifact_results import write_results
from fedlane.files import file_name, read_regular, write_atomically
from fedlane.learning.own_data import runs_user_code
from fedlane.scheduling.registry import split_name
from fedlane.simulation.folder_files import OPTIONAL as OPTIONAL_TABLES
from fedlane.simulation.provenance import PACKAGES, source_commit, versions
from fedlane.simulation.replaying import OTHER_DEVICE, OTHER_NOISE, Tolerances, settings_of
from fedlane.simulation.results import COLUMNS, Run
from fedlane.validate import InputError

FORMAT = 1
REQUIRED = ("scenario.toml", "summary.json", "status.json", *(f"{name}.parquet" for name in COLUMNS))
OPTIONAL = ("provenance.json", "ledger.jsonl", *(f"{name}.parquet" for name in OPTIONAL_TABLES))
COMPARISON = ("comparison.csv", "comparison.json", "comparison.tex")
"""Files of a folder written by `fedlane compare` that are packed as they are."""
ROOT = "artifact"
"""The archive's only top-level folder."""
SUFFIXES = (".zip", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class PackedArtifact:
    """An archive that was written.

    Attributes:
        path: The archive.
        size: Its size in bytes.
        runs: Names of the runs in it.
        files: Number of files in it.
        notes: What has to be known in order to rebuild it.
    """

    path: Path
    size: int
    runs: Sequence[str]
    files: int
    notes: Sequence[str]


def pack_artifact(folders: Sequence[Path], out: Path, comparison: Path | None = None) -> PackedArtifact:
    """Pack finished simulations into an archive.

    Args:
        folders: Run folders. Only files that FedLane writes are packed; models are left out.
        out: The archive, a .zip, .tar.gz or .tgz file.
        comparison: The folder of the comparison that the runs belong to, if any.

    Raises:
        InputError: A folder is damaged, not finished, not a simulation, or has a link in place of a file; or the
            archive cannot be written.
    """
    if not out.name.endswith(SUFFIXES):
        raise InputError(f"artifact {out} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if out.is_dir():
        raise InputError(f"artifact {out} is a folder: give the path of a file")
    runs = {name: Run.load(folder) for name, folder in _names(folders).items()}
    files: dict[str, bytes] = {}
    for (name, run), folder in zip(runs.items(), folders, strict=True):
        _check_rebuildable(folder, run)
        files |= {f"runs/{name}/{file}": content for file, content in _contents(folder).items()}
    if comparison is not None:
        kept = [file for file in COMPARISON if (comparison / file).exists()]
        files |= {f"tables/{file}": _content(comparison / file) for file in kept}
    files |= write_results(runs)
    code, notes = _code(runs)
    files |= {f"code/{name}": content for name, content in code.items()}
    missing = _missing_data(runs)
    notes += missing
    files |= _texts(runs, missing)
    files["manifest.json"] = _manifest(runs, files)
    content = _archive(files, zipped=out.name.endswith(".zip"))
    try:
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"artifact {out} cannot be written: {error.strerror}") from error
    return PackedArtifact(out, len(content), list(runs), len(files), notes)


def _names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return a unique name for each run folder that is safe as part of a path."""
    names: dict[str, Path] = {}
    for folder in folders:
        stem = file_name(folder.resolve().name)
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        names[name] = folder
    return names


def _check_rebuildable(folder: Path, run: Run) -> None:
    try:
        settings_of(run)
    except InputError as error:
        raise InputError(f"{folder} cannot be packed: {error}") from None
    done, rounds = run.summary["rounds"], run.scenario.rounds
    if done != rounds:
        raise InputError(f"{folder} cannot be packed: it is not finished ({done} of {rounds} rounds)")


def _contents(folder: Path) -> dict[str, bytes]:
    """Read the files of a run folder that an artifact keeps, by name."""
    names = [*REQUIRED, *(name for name in OPTIONAL if (folder / name).exists())]
    return {name: _content(folder / name) for name in names}


def _content(path: Path) -> bytes:
    if path.is_symlink():  # a stranger's folder could point at any file of this machine
        raise InputError(f"{path} cannot be packed: it is a link")
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError(f"{path} cannot be packed: {error.strerror or error}") from error


def _code(runs: Mapping[str, Run]) -> tuple[dict[str, bytes], list[str]]:
    """Return the modules in the current folder that runs import, by file name, and notes on all such modules."""
    named = {split_name(settings_of(run).policy)[0] for run in runs.values()}
    named |= {run.scenario.learning.model for run in runs.values()}
    named |= {run.scenario.data.dataset for run in runs.values() if runs_user_code(run.scenario.data.dataset)}
    files, notes = {}, []
    for text in sorted(text for text in named if ":" in text):
        module = text.partition(":")[0].partition(".")[0]
        path = Path(f"{module}.py")
        if module.isidentifier() and path.is_file():
            files[path.name] = _content(path)
            notes.append(f"{path} is packed, because a run names {text}; files that it imports are not")
        else:
            notes.append(f"a run names {text}, which is not in the current folder and is not packed: install it first")
    return files, notes


def _missing_data(runs: Mapping[str, Run]) -> list[str]:
    """Return a sentence for each data set of the user's own: such data is never packed, because it may be private."""
    digests = {}
    for run in runs.values():
        for session in run.provenance.get("sessions", ()):
            if session.get("data"):
                digests[str(session["data"].get("dataset"))] = str(session["data"].get("sha256"))
    sentences = []
    for name, digest in sorted(digests.items()):
        place = "files that it reads are not" if ":" in name else "put it at the same path where you rebuild"
        sentences.append(f"the data of {name} is not packed (SHA-256 of its arrays: {digest}): {place}")
    return sentences


def _texts(runs: Mapping[str, Run], missing: Sequence[str]) -> dict[str, bytes]:
    """Return the README, with a sentence on each data set that is missing, the script and the versions."""
    listed = "\n".join(
        f"- `runs/{name}`: scenario {run.summary['scenario']}, policy {run.summary['policy']}, "
        f"seeds {', '.join(map(str, run.summary['seeds']))}"
        for name, run in runs.items()
    )
    known = versions()
    needed = [name for name in ("fedlane", *PACKAGES) if name in known and name != "flwr"]
    pins = [f"{name}=={known[name].partition('+')[0]}\n" for name in needed]  # 2.6.0+cpu is 2.6.0 in an index
    script = Path(__file__).with_name("rebuild_artifact.py").read_bytes()
    data = "".join(f"\n- {sentence}" for sentence in missing)
    remark = f"\nData sets of the authors' own are missing here:\n{data}\n" if missing else ""
    readme = README.format(runs=listed, data=remark, python=known["python"], **_limits())
    return {
        "README.md": readme.encode(),
        "rebuild.py": script,
        "requirements.txt": "".join(pins).encode(),
    }


def _limits() -> dict[str, Any]:
    same = Tolerances()
    return {
        "accuracy": same.accuracy,
        "loss": same.loss,
        "device_accuracy": OTHER_DEVICE.accuracy,
        "noise_accuracy": OTHER_NOISE.late_accuracy,
    }


def _manifest(runs: Mapping[str, Run], files: Mapping[str, bytes]) -> bytes:
    content = {
        "format": FORMAT,
        "versions": versions(),
        "commit": source_commit()[0],
        "runs": {name: settings_of(run).model_dump() for name, run in runs.items()},
        "files": {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def _archive(files: Mapping[str, bytes], *, zipped: bool) -> bytes:
    """Return an archive; equal files give equal bytes."""
    buffer = io.BytesIO()
    if zipped:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(f"{ROOT}/{name}")
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, files[name])
        return buffer.getvalue()
    import gzip

    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(f"{ROOT}/{name}")
            info.size, info.mode = len(files[name]), 0o644
            archive.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


def changed_files(folder: Path) -> list[str]:
    """Return the files of an unpacked artifact that are missing or differ from its manifest.

    Raises:
        InputError: The folder is not an artifact.
    """
    try:
        content = json.loads(read_regular(folder / "manifest.json", 10_000_000))
        listed = {str(name): str(digest) for name, digest in content["files"].items()}
        if content["format"] != FORMAT:
            raise InputError(f"{folder} has format {content['format']}, this version reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder} is not an artifact: manifest.json is missing or damaged") from error
    changed = []
    for name, digest in listed.items():
        parts = PurePosixPath(name).parts
        if ".." in parts or PurePosixPath(name).is_absolute():
            raise InputError(f"{folder} is not an artifact: its manifest names {name}")
        path = folder.joinpath(*parts)
        if not path.is_file() or hashlib.sha256(read_regular(path)).hexdigest() != digest:
            changed.append(name)
    return changed


README = """# Artifact

Runs of FedLane, with their tables and figures, and a script that rebuilds them.

{runs}
{data}
## Rebuild

With Python {python} and the packages of `requirements.txt`:

    pip install -r requirements.txt
    python rebuild.py            # writes to rebuilt/; exit code 0 if everything agrees

The script plays every run again (policy, seeds, learning and device are in the table `[run]` of its `scenario.toml`),
compares it with the packed tables, and writes tables and figures again. It must agree as follows.

| what | limit |
|---|---|
| schedules: assignments, delays, queues | equal to the bit (1e-9 on a processor that rounds differently) |
| accuracy at every evaluation, on the same class of device | {accuracy} |
| loss at every evaluation, on the same class of device | {loss} relative |
| accuracy on another class of device, without noise | {device_accuracy} |
| mean accuracy of a seed's last three evaluations on another class of device, with noise | {noise_accuracy} |

Models are not packed. A data set that does not come with FedLane must be installed or is downloaded.

## Contents

- `runs/`: one run folder per run: scenario, seeds, versions and host class, tables, summary, ledger.
- `tables/`: `summary.csv` (means and 95% intervals over seeds) and `seeds.csv` (one row per run and seed).
- `figures/`: simulated time and, with learning, accuracy.
- `code/`: modules that runs import, if any.
- `manifest.json`: the SHA-256 digest of every file.
"""
