"""A user's data in tables: folders of Parquet files, Hugging Face data sets on disk, and partitions of flwr-datasets.

A table has a column of inputs, one of labels and optionally one of client ids, under the names below. Without a column
of inputs, all other numeric columns are the features.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlane.files import open_regular, read_regular
from fedlane.validate import InputError, first_line, printable

INPUTS = ("x", "image", "img", "pixel_values", "input_ids", "tokens", "features")
LABELS = ("y", "label", "labels", "target")
CLIENTS = ("client", "client_id", "writer_id", "user_id", "speaker_id", "character_id")
MAX_BYTES, MAX_STATE_BYTES, MAX_IMAGE_BYTES, MAX_PIXELS = 2**34, 10_000_000, 2**24, 2**24
"""Limits: bytes of a split in memory, of a JSON file and of a compressed image, and pixels of an image."""
_INDEX = re.compile(r"__index_level_\d+__")
"""Columns in which pandas stores row numbers."""

Arrays = dict[str, NDArray[Any]]


def folder_arrays(folder: Path) -> Arrays:
    """Return the arrays of a folder: Parquet files, or a Hugging Face data set that `save_to_disk` wrote.

    Raises:
        InputError: A split is missing, or a file is damaged, is too large or lacks the required columns.
    """
    if (folder / "state.json").exists():
        raise InputError(f"data.dataset '{folder}' is one split: save a DatasetDict with train and test")
    saved = (folder / "dataset_dict.json").exists()
    parts = {}
    for split in ("train", "test"):
        files = _arrow_files(folder / split) if saved else _parquet_files(folder, split)
        if not files:
            raise InputError(f"data.dataset '{folder}' has no {split} split: see docs/data.md for the layout")
        try:
            tables = [_read_arrow(file) if saved else _read_parquet(file) for file in files]
            parts[split] = pa.concat_tables(tables)
        except (OSError, pa.ArrowException) as error:
            reason = first_line(error)
            raise InputError(f"data.dataset '{folder}': its {split} split cannot be read: {reason}") from error
    return _split_arrays(f"data.dataset '{folder}'", parts)


def object_arrays(name: str, returned: Any) -> Arrays:
    """Convert what a user's function returned to arrays, if it is not a mapping of arrays already.

    Args:
        name: The data set as the scenario names it.
        returned: Tables or Hugging Face data sets by split, or a `FederatedDataset` of flwr-datasets.
    """
    label = f"data.dataset '{name}'"
    if isinstance(returned, Mapping):
        return _split_arrays(label, {split: _as_table(label, returned[split]) for split in ("train", "test")})
    if hasattr(returned, "load_partition") and hasattr(returned, "partitioners"):
        return _partition_arrays(label, returned)
    raise InputError(f"{label} must return arrays by name, or splits train and test, got {type(returned).__name__}")


def _partition_arrays(label: str, federated: Any) -> Arrays:
    """Return the arrays of a `FederatedDataset`, whose partitions are the clients."""
    federated.load_partition(0, "train")  # assigns the data to the partitioner, which then knows its partitions
    count = federated.partitioners["train"].num_partitions
    tables, ids = [], []
    for client in range(count):
        table = _as_table(label, federated.load_partition(client, "train"))
        if table.num_rows == 0:
            raise InputError(f"{label}: client {client} has no samples")
        tables.append(table)
        ids.append(np.full(table.num_rows, client))
    parts = {"train": pa.concat_tables(tables), "test": _as_table(label, federated.load_split("test"))}
    return {**_split_arrays(label, parts), "client_train": np.concatenate(ids)}


def _as_table(label: str, data: Any) -> pa.Table:
    """Return a table, or a Hugging Face data set as a table."""
    table = data.with_format("arrow")[:] if hasattr(data, "with_format") else data
    if not isinstance(table, pa.Table):
        raise InputError(f"{label} must return pyarrow tables or data sets, got {type(data).__name__}")
    return table


def _parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split: ``train.parquet``, ``train-*.parquet`` (also below ``data``) or ``train/*``."""
    named = re.compile(rf"{split}([-_.].*)?\.parquet")
    for place in (folder, folder / "data"):
        files = sorted(file for file in place.glob("*.parquet") if named.fullmatch(file.name))
        if files:
            return files
    return sorted((folder / split).glob("*.parquet"))


def _arrow_files(folder: Path) -> list[Path]:
    """Return the files of a split that Hugging Face's `save_to_disk` wrote."""
    try:
        state = json.loads(read_regular(folder / "state.json", MAX_STATE_BYTES))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder / 'state.json'} cannot be read: {error}") from error
    if any(Path(name).name != name for name in names):
        raise InputError(f"{folder / 'state.json'} names files outside of its folder")
    return [folder / name for name in names]


def _read_arrow(path: Path) -> pa.Table:
    """Read a stream of Arrow batches, with a bound on their size."""
    batches, size = [], 0
    with open_regular(path) as raw, pa.OSFile(f"/dev/fd/{raw.fileno()}", "rb") as file:
        reader = pa.ipc.open_stream(file)
        columns = _columns(path, reader.schema)
        for batch in reader:
            size += batch.nbytes
            if size > MAX_BYTES:
                raise InputError(f"{path} needs more than {MAX_BYTES:,} bytes")
            batches.append(batch.select(columns))
        kept = pa.schema([reader.schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, kept)


def _read_parquet(path: Path) -> pa.Table:
    """Read the needed columns of a Parquet file after checking their size in the metadata; texts stay dictionaries."""
    with open_regular(path) as raw, pa.OSFile(f"/dev/fd/{raw.fileno()}", "rb") as file:
        metadata = pq.read_metadata(file)
        columns = _columns(path, metadata.schema.to_arrow_schema())
        leaves = [metadata.schema.column(k) for k in range(metadata.num_columns)]
        read = {k: leaf for k, leaf in enumerate(leaves) if leaf.path.split(".")[0] in columns}
        size = 0
        for group in (metadata.row_group(k) for k in range(metadata.num_row_groups)):
            for k in read:
                chunk = group.column(k)
                size += max(8 * chunk.num_values, chunk.total_uncompressed_size)
        if size > MAX_BYTES:
            raise InputError(f"{path} needs {size:,} bytes, at most {MAX_BYTES:,} are read")
        texts = [leaf.path for leaf in read.values() if leaf.physical_type == "BYTE_ARRAY"]
        stored = pq.ParquetFile(file, read_dictionary=texts, page_checksum_verification=True)
        return stored.read(columns=columns)


def _columns(path: Path, schema: pa.Schema) -> list[str]:
    """Return the columns to read."""
    names = schema.names
    label, client = _only(path, names, LABELS), _only(path, names, CLIENTS)
    if label is None:
        shown = ", ".join(printable(names)[:20])
        raise InputError(f"{path} needs a column of labels, one of {', '.join(LABELS)}; it has {shown}")
    inputs = _first(names, INPUTS)
    features = [inputs] if inputs is not None else [f.name for f in schema if _is_number(f.type) and f.name != label]
    features = [name for name in features if name != client and not _INDEX.fullmatch(name)]
    if not features:
        raise InputError(f"{path} needs a column of inputs, one of {', '.join(INPUTS)}, or columns of numbers")
    return [*features, label, *([] if client is None else [client])]


def _split_arrays(label: str, parts: Mapping[str, pa.Table]) -> Arrays:
    """Return the arrays of both splits."""
    arrays: Arrays = {}
    features: list[str] = []
    for split, table in parts.items():
        columns = _columns(Path(f"{label}, {split}"), table.schema)
        names = [name for name in columns if name not in (*LABELS, *CLIENTS)]
        features = features or names
        if set(names) != set(features):
            shown = ", ".join(sorted(printable(list(set(names) ^ set(features))))[:20])
            raise InputError(f"{label} must have the same columns in both splits, but only one has {shown}")
        names = features  # in the order of the first split
        if len(names) == 1 and names[0] in INPUTS:
            arrays[f"x_{split}"] = _values(f"{label}: column {names[0]}", table[names[0]])
        else:
            values = [_values(f"{label}: column {printable(name)}", table[name]) for name in names]
            arrays[f"x_{split}"] = np.stack(values, axis=1).astype(np.float64)
        target, client = _first(columns, LABELS), _first(columns, CLIENTS)
        assert target is not None
        arrays[f"y_{split}"] = _values(f"{label}: column {target}", table[target])
        if client is not None and split == "train":
            arrays["client_train"] = _values(f"{label}: column {client}", table[client])
    return arrays


def _values(label: str, column: Any) -> NDArray[Any]:
    """Return a column as one array; lists must have equal lengths."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [_chunk_values(label, chunk) for chunk in chunks if len(chunk)]
    if not parts:
        raise InputError(f"{label} has no values")
    if len({part.shape[1:] for part in parts}) > 1:
        raise InputError(f"{label} must have inputs of one shape, got {parts[0].shape[1:]} and others")
    return np.concatenate(parts)


def _chunk_values(label: str, array: Any) -> NDArray[Any]:
    """Return a chunk of numbers, of nested lists of numbers, of texts, or of compressed images."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return _images(label, array.field("bytes"))
    if array.null_count:
        raise InputError(f"{label} must not have missing values")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.unique(pc.list_value_length(array))
        if len(lengths) != 1:
            raise InputError(f"{label} must have lists of one length, got {len(lengths)} different lengths")
        inner = _chunk_values(label, array.flatten())
        return inner.reshape(len(array), lengths[0].as_py(), *inner.shape[1:])
    if pa.types.is_dictionary(kind):
        entries = _chunk_values(label, array.dictionary)
        return entries[array.indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist())
    if not _is_number(kind):
        raise InputError(f"{label} must hold numbers, got {printable(str(kind))}")
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def _images(label: str, encoded: Any) -> NDArray[Any]:
    """Decode compressed images, all of one size, to bytes (n, height, width, planes)."""
    images = list(_decoded(label, encoded))
    if len({image.shape for image in images}) > 1:
        raise InputError(f"{label} must have images of one size, got {images[0].shape} and others")
    return np.stack(images)


def _decoded(label: str, encoded: Sequence[Any]) -> Iterator[NDArray[Any]]:
    """Yield images one at a time, after checking their sizes."""
    from PIL import Image

    total = 0
    for scalar in encoded:
        content = scalar.as_py()
        if content is None or len(content) > MAX_IMAGE_BYTES:
            raise InputError(f"{label} must have the images' bytes, at most {MAX_IMAGE_BYTES:,} each")
        try:
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                width, height = image.size
                total += width * height
                if width * height > MAX_PIXELS or 3 * total > MAX_BYTES:
                    raise InputError(f"{label} has images that are too large: {width} x {height}")
                pixels = np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{label} has an image that cannot be read: {error}") from error
        yield pixels if pixels.ndim == 3 else pixels[..., None]


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _only(path: Path, names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the wanted name that is present, None if there is none; two of them would be ambiguous."""
    there = [name for name in wanted if name in names]
    if len(there) > 1:
        raise InputError(f"{path} has the columns {' and '.join(there)}, which could mean the same: rename one")
    return there[0] if there else None


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the first of the wanted names that is present; None if there is none."""
    return next((name for name in wanted if name in names), None)
