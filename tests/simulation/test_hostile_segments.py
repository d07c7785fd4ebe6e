"""Segments of a stranger's run folder: a resumed run has the right rows or ends in one line."""

import os
import shutil
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Run, Simulation
from fedlane.simulation import trace_shape
from fedlane.simulation.results import RunFolder
from fedlane.simulation.segments import NAME, PREDICTED_SCHEMA, remove_segments
from fedlane.simulation.trace_checks import check_segments
from fedlane.validate import InputError
from support.small_runs import UNSAMPLED, played

pytestmark = pytest.mark.slow

TERMS = UNSAMPLED.with_values({"rounds": 40})
SEEDS = (0, 1)
PLAYED = 30


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    """Segments have 8 rounds of 2 seeds, and client_rounds has every third round."""
    monkeypatch.setattr(trace_shape, "HELD_CHANNEL_ROWS", 20)
    monkeypatch.setattr(trace_shape, "SEGMENT_ROWS", 64)
    monkeypatch.setattr(trace_shape, "CLIENT_ROWS", 300)


@pytest.fixture
def folder(tmp_path):
    """An interrupted run whose first 24 rounds are in three segments."""
    path = tmp_path / "run"
    target = RunFolder.create(path)
    simulation = Simulation(TERMS, "lane", SEEDS, bounded=True)
    simulation.keep_segments_in(path)
    simulation.play(until=PLAYED)
    target.write(simulation.result(), checkpoint=simulation.checkpoint(), interrupted=True)
    simulation.ledger.attach_file(path)
    assert sorted(file.name for file in (path / NAME).iterdir()) == [f"{first:09d}.parquet" for first in (0, 8, 16)]
    return path


def finish(folder):
    """Resume a run and play it to its end, with its folder."""
    simulation = Simulation.resume(folder)
    simulation.play()
    run = simulation.result()
    RunFolder(folder).write(run)
    return run


def expected():
    """The same run in memory."""
    return played(TERMS, seeds=SEEDS).result()


def groups(path):
    """The row groups of a segment, one per seed."""
    with pq.ParquetFile(path) as file:
        return [file.read_row_group(k) for k in range(file.num_row_groups)]


def store(path, tables):
    """Write row groups as a segment."""
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))


def changed(table, column, values):
    """A table with other values in a column; NumPy arrays get the type of the column."""
    at = table.column_names.index(column)
    if isinstance(values, np.ndarray):
        values = pa.array(values, PREDICTED_SCHEMA.field(at).type)
    return table.set_column(at, column, values)


def forged_groups(tables):
    """Row groups that no run has written into the second segment, by name."""
    first, second = tables
    length = len(first)
    for column, wrongs in {
        "replica": (1, -1, 2**31 - 1),
        "round": (0, 7, 16, -1, 2**31 - 1, -(2**31)),
        "client": (-1, 10, 2**31 - 1, -(2**31)),
        "channel": (-1, 4, 2**31 - 1, -(2**31)),
        "download_s": (-1.0, np.nan, 1e300),
        "compute_s": (-1.0, np.nan),
        "upload_s": (-1.0, np.nan, np.inf),
        "delay_s": (-1.0, np.nan, 0.0),
        "predicted_low_s": (-1.0, np.nan, np.inf, 1e9),
        "predicted_median_s": (-1.0, np.nan, np.inf, 1e9),
        "predicted_high_s": (-1.0, np.nan, np.inf),
    }.items():
        good = first[column].to_numpy()
        for wrong in wrongs:
            yield f"{column} = {wrong}", [changed(first, column, np.full(length, wrong)), second]
            values = good.copy()
            values[-1] = wrong
            yield f"one {column} = {wrong}", [changed(first, column, values), second]
        yield f"no {column}", [table.drop_columns([column]) for table in tables]
        yield f"null {column}", [changed(first, column, pa.nulls(length, first[column].type)), second]
        yield f"text {column}", [changed(table, column, pa.array(["x"] * len(table))) for table in tables]
    flipped = ~first["punctual"].to_numpy(zero_copy_only=False)
    yield "all punctual flipped", [changed(first, "punctual", flipped), second]
    flipped[1:] = ~flipped[1:]
    yield "one punctual flipped", [changed(first, "punctual", flipped), second]
    other = first["client"].to_numpy().copy()
    other[0] = next(client for client in range(10) if client not in other[:4])
    yield "another client", [changed(first, "client", other), second]
    yield "seeds exchanged", [second, first]
    yield "a seed twice", [first, first]
    yield "a third seed", [first, second, second]
    yield "one seed", [first]
    yield "rows repeated", [pa.concat_tables([first, first]), second]
    yield "one row repeated", [pa.concat_tables([first.slice(0, 1), first]), second]
    yield "reversed", [first.take(np.arange(length)[::-1]), second]
    yield "one row missing", [first.slice(1), second]
    yield "no rows", [first.slice(0, 0), second]
    yield "an extra column", [table.append_column("note", pa.array(["x"] * len(table))) for table in tables]
    yield "wider types", [changed(table, "client", table["client"].cast(pa.int64())) for table in tables]


def test_rows_that_no_run_has_written_are_refused(folder):
    path = folder / NAME / f"{8:09d}.parquet"
    good = path.read_bytes()
    tried, trace = 0, Simulation.resume(folder).trace
    for name, tables in forged_groups(groups(path)):
        store(path, tables)
        with pytest.raises(InputError) as refusal:
            check_segments(trace)
        assert len(str(refusal.value).splitlines()) == 1, name
        tried += 1
    with pytest.raises(InputError, match="was not written by FedLane"):  # the last change
        Simulation.resume(folder)
    path.write_bytes(good)
    assert tried > 80
    run = finish(folder)
    assert run.assignments.equals(expected().assignments)


def test_segments_that_are_missing_exchanged_or_no_files_are_refused(folder, tmp_path):
    stored, trace = shutil.copytree(folder / NAME, tmp_path / "stored"), Simulation.resume(folder).trace
    names = sorted(file.name for file in stored.iterdir())
    kinds = ("missing", "folder", "pipe", "cut", "empty", "link", "other")
    attacks = [(name, kind) for name in names for kind in kinds]
    for name, kind in attacks:
        path = folder / NAME / name
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "cut":
            path.write_bytes((stored / name).read_bytes()[:-9])
        elif kind == "empty":
            path.touch()
        elif kind == "link":
            path.symlink_to("/dev/zero")
        elif kind == "other":  # overlapping segments: the rounds of another one
            shutil.copy(stored / names[names.index(name) - 1], path)
        with pytest.raises(InputError, match=name):
            check_segments(trace)
        path.rmdir() if kind == "folder" else path.unlink(missing_ok=True)
        shutil.copy(stored / name, path)
    assert finish(folder).assignments.equals(expected().assignments)


def test_later_and_foreign_files_do_not_change_the_results(folder, tmp_path):
    """Segments after the checkpoint are written again; a link in their place is replaced and not followed."""
    kept = tmp_path / "kept"
    kept.write_text("important")
    (folder / NAME / f"{24:09d}.parquet").symlink_to(kept)
    (folder / NAME / f"{32:09d}.parquet").write_text("damaged")
    (folder / NAME / "notes.txt").write_text("mine")
    run = finish(folder)
    assert run.assignments.equals(expected().assignments)
    assert kept.read_text() == "important"
    remove_segments(folder)
    assert [file.name for file in (folder / NAME).iterdir()] == ["notes.txt"]
    assert Run.load(folder).assignments.equals(expected().assignments)


def test_a_link_in_place_of_the_folder_of_segments_is_refused(folder, tmp_path):
    """A run would otherwise write into a folder that a stranger chose, and remove files there."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / NAME, elsewhere)
    (folder / NAME).symlink_to(elsewhere)
    before = sorted(file.name for file in elsewhere.iterdir())
    with pytest.raises(InputError, match="must be a folder, and not a link"):
        Simulation.resume(folder)
    remove_segments(folder)
    assert sorted(file.name for file in elsewhere.iterdir()) == before


def test_a_segment_of_many_rows_is_refused_before_it_is_read(folder):
    """Equal numbers need little of the disk: here two million rows in a small file."""
    path, rows = folder / NAME / f"{8:09d}.parquet", 1_000_000
    columns = {field.name: pa.array(np.zeros(rows), field.type) for field in PREDICTED_SCHEMA}
    table = pa.table(columns, PREDICTED_SCHEMA)
    del columns
    store(path, [table, table])
    del table
    assert path.stat().st_size < 150_000
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    tracemalloc.start()
    with pytest.raises(InputError, match="a row group has 1,000,000 rows, at most 32 are read"):
        Simulation.resume(folder)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert pool.bytes_allocated() < before + 1e6


def test_sums_of_a_checkpoint_that_do_not_agree_with_the_segments_are_refused(folder):
    with np.load(folder / "checkpoint.npz") as checkpoint:
        arrays = dict(checkpoint)
    tried, sums = 0, ("trace.served", "trace.uploads", "trace.max_queue", "trace.shape")
    for name in (*sums, *(name for name in arrays if name.startswith("total."))):
        for change in (-1, 1, 2**30):
            forged = arrays[name].copy()
            forged.flat[3 * tried % forged.shape[-1]] += change  # client_rounds has the queues of every third round
            np.savez(folder / "checkpoint.npz", **{**arrays, name: forged})
            with pytest.raises(InputError):
                Simulation.resume(folder)
            tried += 1
        np.savez(folder / "checkpoint.npz", **{key: array for key, array in arrays.items() if key != name})
        with pytest.raises(InputError):
            Simulation.resume(folder)
        tried += 1
    np.savez(folder / "checkpoint.npz", **arrays)
    assert finish(folder).assignments.equals(expected().assignments)
