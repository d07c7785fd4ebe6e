"""Where a run's results come from: command, date, versions, commit, device and host class (``provenance.json``).

Environment variables, the host's name and the user's name are not recorded. A run that is interrupted and resumed has
one session for each start.
"""

import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.files import read_regular
from fedlane.validate import InputError, printable

NAME = "provenance.json"
FORMAT = 1
MAX_BYTES = 10_000_000
"""Largest file that is read."""
PACKAGES = (
    *("numpy", "scipy", "numba", "torch", "dp-accounting", "pyarrow", "pydantic", "safetensors", "matplotlib"),
    "flwr",
)
"""Packages whose versions are recorded, besides FedLane and Python."""
GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RunSession:
    """One start of a run: new, or resumed.

    Attributes:
        command: The command line, without secrets; None for a run that was started from Python or by Flower.
        started: Date and time, in UTC.
        first_round: Index of the first round that this session played.
        device: Class (``cpu`` or ``cuda``) and name of the device that trains; None where nothing is trained.
        versions: Versions of FedLane, Python and the packages that results depend on.
        commit: Git commit of FedLane's source, if it runs from a checkout.
        modified: Whether the source differed from that commit.
        host: Processor, number of cores, operating system, and how NumPy rounds (see `arithmetic`).
        data: Name and SHA-256 of a user's data set; None for a built-in one.
    """

    command: str | None
    started: str
    first_round: int
    device: Mapping[str, str] | None
    versions: Mapping[str, str]
    commit: str | None
    modified: bool | None
    host: Mapping[str, Any]
    data: Mapping[str, str] | None = None


@dataclass
class RunOrigin:
    """What is to be recorded about a run in progress.

    Attributes:
        device: Class of the device that trains the model; None without learning.
        command: The command line that started the run; None if there is none.
        started: When this session started.
        first_round: Index of the first round of this session.
        earlier: The run's earlier sessions, as ``provenance.json`` has them.
        data: Name and SHA-256 of a user's data set; None for a built-in one.
    """

    device: str | None = None
    command: str | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    first_round: int = 0
    earlier: Sequence[Mapping[str, Any]] = ()
    data: Mapping[str, str] | None = None

    def resume(self, folder: Path, first_round: int) -> None:
        """Continue the provenance of a run folder.

        Raises:
            InputError: The run's data set has changed.
        """
        self.first_round = first_round
        stored = read_provenance(folder)
        try:
            self.check_data(stored)
        except InputError as error:
            raise InputError(f"{folder} cannot be resumed: {error}") from error
        self.earlier = stored.get("sessions", ())

    def check_data(self, stored: Mapping[str, Any]) -> None:
        """Raise an `InputError` if the provenance of a run names another content of this run's data set."""
        for session in stored.get("sessions", ()):
            recorded = session.get("data")
            if self.data is not None and recorded is not None and recorded != self.data:
                raise InputError(f"its data set '{self.data['dataset']}' has changed since it was recorded")

    def provenance(self, kind: str) -> dict[str, Any]:
        """Return the content of ``provenance.json``.

        Args:
            kind: ``simulation`` or ``flower``.
        """
        commit, modified = source_commit()
        session = RunSession(
            command=self.command,
            started=self.started.isoformat(timespec="seconds"),
            first_round=self.first_round,
            device=None if self.device is None else {"class": self.device, "name": _device_name(self.device)},
            versions=versions(),
            commit=commit,
            modified=modified,
            host=host(),
            data=self.data,
        )
        return provenance(kind, [*self.earlier, asdict(session)])


def provenance(kind: str, sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of ``provenance.json`` for sessions in the order of their start."""
    return {"format": FORMAT, "kind": kind, "sessions": list(sessions)}


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read the provenance of a run folder; empty if the folder has none.

    Raises:
        InputError: The file is damaged, or was written by a later version of FedLane.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    try:
        values = printable(json.loads(read_regular(path, MAX_BYTES)))
        if values["format"] != FORMAT:
            raise InputError(f"{path} has format {values['format']}, this version reads {FORMAT}")
        for session in values["sessions"]:
            if not all(isinstance(session.get(part) or {}, dict) for part in ("device", "versions", "host", "data")):
                raise TypeError("device, versions, host and data of a session must be tables")
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{path} is damaged: its values are nested too deeply") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return dict(values)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of FedLane, Python and the packages that results depend on, without importing them."""
    from fedlane import __version__

    found = {"fedlane": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def source_commit() -> tuple[str | None, bool | None]:
    """Return the git commit of FedLane's source and whether the source was changed; None outside of a checkout."""
    source = Path(__file__).resolve().parents[2]
    root = source.parent
    if source.name != "src" or not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return None, None  # an installed package; a repository around it is somebody else's
    commit = _git(root, "rev-parse", "HEAD")
    changes = None if commit is None else _git(root, "status", "--porcelain", "--", "src")
    return commit, None if changes is None else bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


@functools.cache
def host() -> dict[str, Any]:
    """Return the class of this machine: nothing that names it or its user."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": _system(),
        "arithmetic": arithmetic(),
    }


@functools.cache
def arithmetic() -> str:
    """Identify how NumPy rounds exp, log and powers here.

    NumPy computes them with vector instructions where the processor has them, and the last bit then differs. Schedules
    are equal to the bit where this is equal.
    """
    x = np.linspace(0.01, 20.0, 4001)
    results = (np.exp(x), np.log(x), np.log2(x), np.log10(x), np.log1p(x), np.sqrt(x), np.sin(x), np.cos(x))
    digest = hashlib.sha256(b"".join(result.tobytes() for result in (*results, 10.0 ** (x / 10))))
    return digest.hexdigest()[:12]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, ValueError):
        pass
    return platform.processor() or platform.machine()


def _system() -> str:
    """Return the operating system, for example ``Debian GNU/Linux 12 (bookworm), x86_64``."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = f"{platform.system()} {platform.mac_ver()[0]}".strip() if sys.platform == "darwin" else platform.system()
    return f"{name}, {platform.machine()}"


def _device_name(device: str) -> str:
    if device != "cuda":
        return _processor()
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"
