"""Tables, models and archives of a stranger's run folder: a result or one line, in bounded memory and time."""

import copy
import itertools
import json
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlane import Run, Scenario, Simulation
from fedlane.cli.comparing import extra_run
from fedlane.report.page_data import page_data
from fedlane.report.watch import Watch
from fedlane.simulation.results import COLUMNS
from fedlane.validate import InputError
from support.refusals import refused
from support.terminal import fedlane

INDICES = {"replica", "round", "client", "channel"}


def wrong_columns(rows):
    """Columns that no run has, by name."""
    first_infinite = np.arange(rows, dtype=float)
    first_infinite[:1] = np.inf
    return {
        "inf": pa.array([np.inf] * rows),
        "one inf": pa.array(first_infinite),
        "1e300": pa.array([1e300] * rows),
        "2e18": pa.array([2e18] * rows),
        "2^63 - 1": pa.array([2**63 - 1] * rows),
        "2^64 - 1": pa.array([2**64 - 1] * rows, pa.uint64()),
        "49,999,999": pa.array([49_999_999] * rows),
        "distinct": pa.array(range(rows)),
        "-1": pa.array([-1] * rows),
        "nan": pa.array([np.nan] * rows),
        "half": pa.array([0.5] * rows),
        "null": pa.nulls(rows),
        "nulls": pa.array([None] * rows, pa.int64()),
        "text": pa.array(["\x1b[31mx<script>"] * rows),
        "list": pa.array([[1]] * rows),
        "struct": pa.array([{"a": 1}] * rows),
        "bytes": pa.array([b"1"] * rows),
        "time": pa.array([0] * rows, pa.timestamp("s")),
        "dictionary": pa.array(["a"] * rows).dictionary_encode(),
        "decimal": pa.array([1] * rows).cast(pa.decimal128(38, 2)),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinite measures, for example
def test_every_wrong_column_is_a_result_or_one_line(folder, monkeypatch):
    """For a report and for `compare --with`; an index must be a whole number from 0 to 2^31 - 1."""
    monkeypatch.setattr("fedlane.report.run_files.ATTEMPTS", 1)  # nobody rewrites the folder meanwhile
    refusals = 0
    for name, columns in COLUMNS.items():
        path = folder / f"{name}.parquet"
        good = pq.read_table(path)
        changed = [good.slice(0, 0), good.slice(0, 1), pa.concat_tables([good] * 2), pa.table({})]
        changed += [good.drop_columns([column]) for column in columns]
        for column in columns:
            at = good.column_names.index(column)
            wrongs = [*wrong_columns(len(good)).values()]
            step = 2 if column in INDICES else 7
            wrongs = wrongs[len(changed) % step :: step]
            changed += [good.set_column(at, column, wrong) for wrong in wrongs]
        for table in changed:
            pq.write_table(table, path)
            refusals += refused(page_data, [folder]) + refused(extra_run, folder, 0.5)
        pq.write_table(good, path)
    assert not refused(page_data, [folder])
    assert not refused(extra_run, folder, 0.5)
    assert refusals > 150


def test_watch_reports_a_wrong_index_on_its_page(folder):
    watched = Watch(folder, "127.0.0.1", 8050, None, frozenset())
    assert not watched.current()[1]["problem"]
    path = folder / "rounds.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "replica", pa.array([np.inf] * len(table))), path)
    assert "must hold whole numbers" in watched.current()[1]["problem"]


@pytest.mark.slow
def test_wrong_values_in_a_compared_summary_are_a_result_or_one_line(folder):
    path = folder / "summary.json"
    good = json.loads(path.read_text())
    wrongs = itertools.cycle(("text", 10**400, [], float("nan"), {}, float("-inf"), True))
    for key, value in good.items():
        inner = list(value) if isinstance(value, dict) else []
        for place, wrong in zip([None, None, None, *inner, *inner], wrongs, strict=False):
            path.write_text(json.dumps({**good, key: wrong if place is None else {**value, place: wrong}}))
            refused(extra_run, folder, 0.5)
    path.write_text(json.dumps({**good, "privacy": "text"}))
    assert refused(extra_run, folder, None)
    path.write_text(json.dumps({**good, "seeds": [0, 0]}))
    assert refused(extra_run, folder, None)


def test_a_wrong_extra_run_is_refused_before_anything_is_computed(folder):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "privacy": "text"}))
    options = ("--policy", "random", "--rounds", "2", "--no-learning", "--out", "compared")
    result = fedlane("compare", "quickstart", *options, "--with", folder, cwd=folder.parent, code=2)
    assert len(result.stderr.splitlines()) == 1
    assert not (folder.parent / "compared").exists()


def peak_bytes(use, *arguments):
    """Memory that a call needs at its peak, Arrow's included, whether it is refused or not."""
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    refused(use, *arguments)
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return max(traced, pool.max_memory() - before)


@pytest.mark.parametrize("stored_as_text", [True, False])
def test_long_texts_in_a_table_do_not_fill_the_memory(folder, stored_as_text):
    """A text of a million characters, stored once and repeated in every row of a column that no command needs."""
    path, rows = folder / "rounds.parquet", 200
    table = pq.read_table(path)
    columns = {
        name: pa.concat_arrays([table[name].combine_chunks()] * 25).slice(0, rows) for name in table.column_names
    }
    note = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({**columns, "note": note}), path, compression="zstd", store_schema=not stored_as_text)
    assert path.stat().st_size < 50_000
    shown = fedlane("show", folder, cwd=folder.parent)
    assert shown.returncode == 0
    for use in (Run.load, lambda run: page_data([run]), lambda run: extra_run(run, None)):
        assert peak_bytes(use, folder) < 30e6


def test_columns_that_need_much_memory_are_refused_before_they_are_read(folder, monkeypatch):
    """Equal numbers need much memory and little of the disk; here the limit is 20 MB instead of 1 GB."""
    monkeypatch.setattr("fedlane.parquet_tables.MAX_BYTES", 20_000_000)
    path, rows = folder / "rounds.parquet", 500_000
    table = pq.read_table(path)
    pq.write_table(pa.table({name: pa.nulls(rows, table.schema.field(name).type) for name in table.column_names}), path)
    assert path.stat().st_size < 50_000
    for use in (Run.load, lambda run: page_data([run])):
        with pytest.raises(InputError, match=r"its columns need [0-9,]+ bytes, at most 20,000,000 are read"):
            use(folder)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["slots", "one client", "one replica", "one channel", "squares", "stride"])
def test_a_report_s_arrays_are_bounded_by_the_rows_of_its_tables(folder, attack):
    """Few rows name large indices, or many assignments are in one of many rounds: dense arrays would need gigabytes."""
    tables = {name: pq.read_table(folder / f"{name}.parquet") for name in COLUMNS}

    def rewrite(name, rows, **columns):
        filled = {
            field.name: columns.get(field.name, np.zeros(rows, bool if pa.types.is_boolean(field.type) else np.int64))
            for field in tables[name].schema
        }
        pq.write_table(pa.table(filled), folder / f"{name}.parquet", compression="zstd")

    if attack == "slots":
        rewrite("assignments", 400_000)
        for name in ("rounds", "client_rounds"):
            rewrite(name, 500, round=np.arange(500))
    elif attack == "stride":  # one row of client_rounds would stand for all rounds
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "client_rounds_every": 2**31 - 1}))
        rewrite("rounds", 2, round=np.array([0, 40_000_000]))
    elif attack == "squares":
        for name in ("rounds", "client_rounds"):
            rewrite(name, 7000, round=np.arange(7000), replica=np.arange(7000))
    else:
        name, column = {
            "client": ("clients", "client"),
            "replica": ("rounds", "replica"),
            "channel": ("channels",) * 2,
        }[attack.split()[1]]
        column = column.removesuffix("s")
        values = np.zeros(2, np.int64)
        values[0] = 40_000_000
        rewrite(name, 2, **{column: values})
    assert refused(page_data, [folder])
    assert peak_bytes(page_data, [folder]) < 120e6


def tensor_file(dtype, shape, size):
    text = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def test_models_of_types_that_numpy_does_not_have_are_one_line(folder):
    """bfloat16, float8, float4 and a hundred axes; `show` does not read the model at all."""
    cases = [("BF16", [1], 2), ("F8_E4M3", [1], 1), ("F8_E5M2", [1], 1), ("F8_E8M0", [1], 1), ("F4", [2], 1)]
    cases += [("F32", [1] * 100, 4), ("ZZ", [1], 1), ("F32", [2**62, 2**62], 4)]
    for case in cases:
        (folder / "model.safetensors").write_bytes(tensor_file(*case))
        assert refused(Run.load, folder)
        assert fedlane("show", folder, cwd=folder.parent).returncode == 0


@pytest.mark.slow
def test_a_compressed_checkpoint_that_grows_is_refused(folder):
    with np.load(folder / "checkpoint.npz") as checkpoint:
        arrays = dict(checkpoint)
    np.savez_compressed(folder / "checkpoint.npz", **arrays, bomb=np.zeros(100_000_000, np.uint8))
    assert peak_bytes(Simulation.resume, folder) < 20e6
    result = fedlane("run", "--resume", folder, "--quiet", cwd=folder.parent, code=2)
    assert "its arrays need" in result.stderr


def hostile_numbers(array):
    if array.dtype.kind == "i":
        limits = np.iinfo(array.dtype)
        return (-1, -2, 10, 1000, 10**6, limits.max, limits.min)
    if array.dtype.kind == "f":
        return (np.nan, np.inf, -np.inf, -1.0, 1e30, 1e-30)
    return (True, False) if array.dtype.kind == "b" else ()


@pytest.mark.slow
def test_hostile_numbers_in_a_checkpoint_are_a_result_or_one_line(folder, monkeypatch):
    """Every array filled with numbers that would be indices outside of arrays, or reach the summary as infinity."""
    with np.load(folder / "checkpoint.npz") as checkpoint:
        arrays = dict(checkpoint)

    prepared = Simulation(Scenario.load(folder / "scenario.toml"), "lane", [0, 1])
    monkeypatch.setattr(
        Simulation, "__init__", lambda self, *_, **options: vars(self).update(copy.deepcopy(vars(prepared)))
    )

    def resume():
        simulation = Simulation.resume(folder)
        simulation.play()
        json.dumps(simulation.result().summary, allow_nan=False)

    refusals = 0
    for name, array in arrays.items():
        for number in hostile_numbers(array) if name not in ("_seeds", "_learning") else ():
            forged = array.copy()
            forged[...] = number
            np.savez(folder / "checkpoint.npz", **{**arrays, name: forged})
            refusals += refused(resume)
    assert refusals > 60
