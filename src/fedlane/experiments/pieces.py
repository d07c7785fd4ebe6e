"""Pieces of learning for a machine that cannot be joined: schedules out, learning curves in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedlane.experiments.readings.design import reading_named
from fedlane.experiments.reproduce import ReproductionPlan
from fedlane.experiments.store import READINGS, SETTINGS, TASKS, Experiment, ResultStore, SeededExperiment, check_curves
from fedlane.files import READ_ERRORS, load_arrays
from fedlane.learning.schedule import Curves
from fedlane.validate import InputError


def prepare_export(folder: Path) -> None:
    """Create the folder of an export; raise `InputError` if it cannot be created or already has curves."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from error
    if any(folder.glob("curves-*.npz")):
        raise InputError(f"{folder} already contains curves: import them with --import, then export to a new folder")


def export_pieces(plan: ReproductionPlan, store: ResultStore, folder: Path, first: int = 0) -> int:
    """Write each piece to be trained as a schedule file and a JSON list of its experiments; return their number.

    Args:
        plan: The plan.
        store: The store; it has all schedules.
        folder: The folder.
        first: Number of the first piece.
    """
    prepare_export(folder)
    pieces = plan.to_learn(store)
    for number, piece in enumerate(pieces, start=first):
        store.joint_schedule(piece).save(folder / f"piece-{number:02d}.npz")
        rows = [{**asdict(experiment), "seed": seed} for experiment, seed in piece]
        (folder / f"piece-{number:02d}.json").write_text(json.dumps({"rounds": store.rounds, "rows": rows}))
    return len(pieces)


def _imported_row(row: Mapping[str, Any]) -> SeededExperiment:
    """Return the experiment and the seed of a piece's row; raise `InputError` for what FedLane does not export."""
    experiment = Experiment(**{key: value for key, value in row.items() if key != "seed"})
    known = experiment.task in TASKS and experiment.setting in SETTINGS and isinstance(experiment.policy, str)
    seed = row["seed"]
    if not (known and experiment.reading in READINGS and type(seed) is int and 0 <= seed < 2**63):
        raise InputError(f"unknown experiment {row}")
    return experiment, seed


def import_pieces(store: ResultStore, folder: Path) -> int:
    """Import the curves of pieces that were trained elsewhere. Return the number of pieces."""
    files = sorted(folder.glob("curves-*.npz"))
    if not files:
        raise InputError(f"{folder} contains no curves-*.npz")
    for file in files:
        piece_list = folder / file.name.replace("curves", "piece").replace(".npz", ".json")
        try:
            piece = json.loads(piece_list.read_text())
            wanted = [_imported_row(row) for row in piece["rows"]]
            target = _store_of(store, wanted)
            arrays = check_curves(load_arrays(file), len(wanted), target.rounds)
            fits = int(piece["rounds"]) == target.rounds
        except READ_ERRORS as error:
            raise InputError(f"{file} cannot be imported: {error}") from error
        for r, (experiment, seed) in enumerate(wanted if fits else []):  # another schedule has another clock
            clock = np.cumsum(target.result(experiment, seed).delay_s)[arrays["round"]]
            fits &= bool(np.allclose(arrays["clock_s"][r], clock))
        if not fits:
            raise InputError(f"{file} does not match {piece_list.name}: its curves belong to another schedule")
        target.save_curves(wanted, Curves(weights=np.zeros((len(wanted), 0)), **arrays))
    return len(files)


def _store_of(store: ResultStore, wanted: Sequence[SeededExperiment]) -> ResultStore:
    """Store of a piece's rows: readings of the map have their own number of rounds, the same for a whole piece."""
    rounds = {
        store.rounds if experiment.reading in ("calibrated", "literal") else reading_named(experiment.reading).rounds
        for experiment, _ in wanted
    }
    if len(rounds) != 1:
        raise InputError("its rows have different numbers of rounds")
    return ResultStore(store.folder, rounds.pop())
