"""Data sets of one's own: arrays, tables and functions, how they are checked, and how a run records them."""

import io
import json
import pickle
import re
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedlane.data_tables import folder_arrays
from fedlane.learning import own_data
from fedlane.learning.datasets import dataset_info, load_dataset
from fedlane.learning.models import make_model
from fedlane.validate import InputError

RNG = np.random.default_rng(0)


def vectors(n=60, classes=3):
    """Two clusters per class, easy to learn."""
    labels = np.arange(n) % classes
    return (np.eye(classes)[labels] * 4 + RNG.normal(size=(n, classes))).astype(np.float32), labels


def arrays(**changes):
    (x_train, y_train), (x_test, y_test) = vectors(60), vectors(30)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, **changes}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, empty, without a data set in memory."""
    monkeypatch.chdir(tmp_path)
    own_data._load.cache_clear()
    return tmp_path


def test_arrays_of_any_shape_and_type(here):
    np.savez(here / "my.npz", **arrays())
    data = load_dataset("my.npz")
    assert (data.info.input_shape, data.info.classes, data.info.tokens) == ((3,), 3, None)
    np.testing.assert_array_equal(data.info.class_totals, [20, 20, 20])
    gray = RNG.integers(0, 256, (60, 8, 9), np.uint8)
    np.savez(here / "gray.npz", **arrays(x_train=gray, x_test=gray[:30]))
    assert dataset_info("gray.npz").input_shape == (1, 8, 9)
    first = RNG.integers(0, 256, (60, 3, 8, 9), np.uint8)
    np.savez(here / "first.npz", **arrays(x_train=first, x_test=first[:30]))
    assert dataset_info("./first.npz").input_shape == (3, 8, 9)
    np.testing.assert_array_equal(load_dataset("first.npz").train.images[5, :, :, 2], first[5, 2])
    tokens = RNG.integers(0, 50, (60, 12))
    tokens[3, 4] = 99
    np.savez(here / "tokens.npz", **arrays(x_train=tokens, x_test=tokens[:30] % 50))
    assert (dataset_info("tokens.npz").tokens, dataset_info("tokens.npz").input_shape) == (100, (12,))


def test_a_changed_file_is_read_again(here):
    np.savez(here / "my.npz", **arrays())
    before = dataset_info("my.npz").digest
    assert dataset_info("my.npz").digest == before
    changed = arrays()
    changed["x_train"] = changed["x_train"] + 1
    np.savez(here / "my.npz", **changed)
    assert len(before) == 64
    assert dataset_info("my.npz").digest != before


BAD = {
    "nan": ({"x_train": np.full((60, 3), np.nan)}, "x_train must be finite and from -1e+06 to 1e+06, got nan"),
    "large": ({"x_test": np.full((30, 3), -2e6)}, "x_test must be finite and from -1e+06 to 1e+06, got -2e"),
    "negative label": ({"y_train": np.arange(60) % 3 - 1}, "y_train must hold class labels from 0, got -1"),
    "label": ({"y_test": np.full(30, 7)}, "y_test has the label 7, but classes are 0 to 2"),
    "huge label": ({"y_train": np.full(60, 2**40)}, "y_train must hold class labels below 100000"),
    "float labels": ({"y_train": np.full(60, 0.5)}, "y_test must have the targets of y_train, floats (n,), got whole"),
    "nan target": ({"y_train": np.full(60, np.nan), "y_test": np.zeros(30)}, "y_train must be finite and from -1e+06"),
    "large target": ({"y_train": np.zeros(60), "y_test": np.full(30, 2e6)}, "y_test must be finite and from -1e+06"),
    "rows": ({"y_train": np.zeros((60, 2)), "y_test": np.zeros((30, 3))}, "floats (n, 2), got floats (n, 3)"),
    "no value": ({"y_train": np.zeros((60, 0)), "y_test": np.zeros((30, 0))}, "y_train must have from 1 to 10000"),
    "classes": ({"y_train": np.zeros(60), "y_test": np.zeros(30), "classes": np.array(3)}, "classes are for whole"),
    "sequences": ({"y_train": np.zeros((60, 4), int)}, "whole numbers (n, 4), got whole numbers (n,)"),
    "three axes": ({"y_train": np.zeros((60, 4, 2), int)}, "y_train must hold one number or one row of numbers"),
    "short": ({"y_train": np.zeros(59, int)}, "y_train must hold one number or one row of numbers per sample (60)"),
    "given classes": ({"classes": np.array(2)}, "y_train has the label 2, but classes are 0 to 1"),
    "shape": ({"x_test": np.zeros((30, 4), np.float32)}, "x_test must have the inputs of x_train, floats (3,)"),
    "type": ({"x_test": np.zeros((30, 3), int)}, "x_test must have the inputs of x_train, floats (3,), got tokens"),
    "empty": ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, "x_train must have the shape"),
    "negative token": ({"x_train": np.full((60, 3), -1)}, "x_train has integers, which are tokens from 0"),
    "flat bytes": ({"x_train": np.zeros((60, 3), np.uint8)}, "x_train has bytes, which are images"),
    "texts": ({"x_train": np.full((60, 3), "a")}, "x_train must hold numbers, got <U1"),
    "float ids": ({"client_train": np.zeros(60)}, "client_train must hold one client id per sample"),
    "few ids": ({"client_train": np.zeros(5, int)}, "client_train must hold one client id per sample (60)"),
    "unknown": ({"client_trian": np.zeros(60, int)}, "unknown array 'client_trian' (did you mean 'client_train'"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_arrays_are_refused_in_one_line(here, case):
    changes, message = BAD[case]
    np.savez(here / "my.npz", **arrays(**changes))
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load_dataset("my.npz")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("data.dataset 'my.npz'")


def test_missing_and_foreign_files_are_refused(here):
    with pytest.raises(InputError, match=r"'no.npz' does not exist; paths are relative to the current folder"):
        load_dataset("no.npz")
    (here / "my.csv").write_text("1,2")
    with pytest.raises(InputError, match="must be an npz file, a folder of Parquet files or module:function"):
        load_dataset("./my.csv")
    (here / "my.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"'my.npz' cannot be read"):
        load_dataset("my.npz")
    np.savez(here / "part.npz", x_train=np.zeros((2, 2)))
    with pytest.raises(InputError, match="y_train is missing"):
        load_dataset("part.npz")


class Bomb:
    """Sets a flag when it is unpickled."""

    def __reduce__(self):
        return exec, ("import sys; sys.was_unpickled = True",)


def test_a_pickle_in_an_npz_is_never_read(here):
    np.savez(here / "my.npz", **arrays(x_train=np.array([Bomb()] * 60, dtype=object)))
    with pytest.raises(InputError, match=r"x_train.npy holds pickled objects, which are never read"):
        load_dataset("my.npz")
    with zipfile.ZipFile(here / "raw.npz", "w") as archive:
        archive.writestr("x_train.npy", pickle.dumps(Bomb()))
    with pytest.raises(InputError, match=r"'raw.npz' cannot be read"):
        load_dataset("raw.npz")
    assert not hasattr(sys, "was_unpickled")


def test_a_small_file_with_huge_arrays_is_refused_before_they_are_allocated(here):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (2**20, 2**10)})
    with zipfile.ZipFile(here / "my.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", buffer.getvalue() + b"\0" * 90_000_000)
    with pytest.raises(InputError, match=r"need .* bytes, at most"):
        load_dataset("my.npz")


def columns(n=40):
    x, y = vectors(n)
    return {"x": list(x), "label": y, "client_id": [f"phone {k % 4}" for k in range(n)]}


def as_lists(kind=None):
    values = columns()
    return pa.table({**values, "x": pa.array([row.tolist() for row in values["x"]], kind)})


def _tabular(folder, train, test):
    folder.mkdir()
    for split, columns in (("train", train), ("test", test)):
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), folder / f"{split}.parquet")


def test_columns_of_both_splits_are_matched_by_name(here):
    a, b, y = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0, 1, 0]
    _tabular(here / "t", {"a": a, "b": b, "label": y}, {"b": b, "label": y, "a": a, "__index_level_0__": y})
    arrays = folder_arrays(here / "t")
    np.testing.assert_array_equal(arrays["x_train"], np.stack([a, b], axis=1))
    np.testing.assert_array_equal(arrays["x_test"], arrays["x_train"])


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("a label", "c label", "same columns in both splits, but only one has a, c"),
        ("a y label", "a y label", "has the columns y and label, which could mean the same: rename one"),
        ("a y client_id user_id", "a y client_id user_id", "client_id and user_id, which could mean the same"),
    ],
)
def test_columns_that_could_be_mistaken_are_refused(here, train, test, message):
    _tabular(here / "t", *({name: [0, 1, 0] for name in names.split()} for names in (train, test)))
    with pytest.raises(InputError, match=message):
        folder_arrays(here / "t")


@pytest.mark.parametrize("layout", ["{}.parquet", "{}-00000-of-00001.parquet", "{}/part.parquet", "data/{}-0.parquet"])
def test_a_folder_of_parquet(here, layout):
    for split in ("train", "test"):
        file = here / "mine" / layout.format(split)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(as_lists(pa.list_(pa.float32(), 3)), file)
    data = load_dataset("./mine")
    assert (data.train.images.shape, data.info.classes, data.info.natural.shape) == ((40, 3), 3, (4, 3))
    assert data.train.images.dtype == np.float32


def test_columns_of_numbers_are_features_and_compressed_images_are_decoded(here):
    from PIL import Image

    x, y = vectors(40)
    (here / "tabular").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"height": x[:, 0], "age": y, "y": y}), here / "tabular" / f"{split}.parquet")
    data = load_dataset("./tabular")
    np.testing.assert_allclose(data.train.images, np.stack([x[:, 0], y], axis=1))
    pictures, encoded = RNG.integers(0, 256, (40, 6, 5), np.uint8), []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    (here / "images").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"image": encoded, "label": y}), here / "images" / f"{split}.parquet")
    np.testing.assert_array_equal(load_dataset("./images").train.images[..., 0], pictures)


def save_to_disk(folder, table):
    """Write what Hugging Face's DatasetDict.save_to_disk writes."""
    (folder).mkdir(parents=True)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        (folder / split).mkdir()
        with pa.ipc.new_stream(str(folder / split / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=16)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0"}
        (folder / split / "state.json").write_text(json.dumps(state))


def test_a_hugging_face_data_set_on_disk(here):
    save_to_disk(here / "saved", as_lists())
    data = load_dataset("saved/")
    assert (data.train.images.shape, data.test.images.shape) == ((40, 3), (40, 3))
    (here / "saved" / "test" / "state.json").write_text('{"_data_files": [{"filename": "../train/state.json"}]}')
    with pytest.raises(InputError, match=r"state.json names files outside of its folder"):
        load_dataset("saved/")
    (here / "saved" / "test" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"state.json cannot be read"):
        load_dataset("saved/")


def test_unusable_tables_are_refused(here):
    (here / "mine").mkdir()
    with pytest.raises(InputError, match="has no train split"):
        load_dataset("./mine")
    pq.write_table(as_lists(), here / "mine" / "test.parquet")
    uneven = columns()
    uneven["x"][3] = [1.0]
    for table, message in (
        (pa.table({**uneven, "x": pa.array([list(map(float, row)) for row in uneven["x"]])}), "lists of one length"),
        (pa.table({"x": [[1.0]]}), "needs a column of labels"),
        (pa.table({"text": ["a"], "y": [0]}), "needs a column of inputs"),
        (pa.table({"x": [[1.0], None], "y": [0, 1]}), "must not have missing values"),
    ):
        pq.write_table(table, here / "mine" / "train.parquet")
        with pytest.raises(InputError, match=message):
            load_dataset("./mine")
    (here / "mine" / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="train split cannot be read"):
        load_dataset("./mine")


def test_a_function_returns_arrays_or_tables(here, monkeypatch):
    (here / "my_loader.py").write_text(
        "import numpy as np, pyarrow as pa\n"
        "def load():\n    x = np.eye(4, dtype='float32')\n"
        "    return dict(x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[1, 1, 0, 1])\n"
        "def tables():\n    t = pa.table({'x': [[0.5, 1], [1, 2]], 'y': [0, 1]})\n    return dict(train=t, test=t)\n"
        "def broken():\n    raise RuntimeError('no such disk\\nsecond line')\n"
        "def number():\n    return 5\n"
        "def ragged():\n    return dict(load(), x_train=[[1.0, 2.0], [3.0]])\n"
        "def leaves():\n    raise SystemExit(3)\n"
        "class Offline:\n    partitioners = {}\n"
        "    def load_partition(self, client, split):\n        raise ConnectionError('no network')\n"
        "def offline():\n    return Offline()\n"
    )
    try:
        assert load_dataset("my_loader:load").info.input_shape == (4,)
        assert load_dataset("my_loader:tables").info.class_totals.tolist() == [1, 1]
        for name, message in (
            ("my_loader:broken", "'my_loader:broken' cannot be loaded: no such disk$"),
            ("my_loader:missing", "cannot be loaded: module 'my_loader' has no attribute 'missing'"),
            ("no_such_module:load", "cannot be loaded: No module named 'no_such_module'"),
            ("my_loader:ragged", "'my_loader:ragged' cannot be loaded: setting an array element with a sequence"),
            ("my_loader:leaves", "'my_loader:leaves' cannot be loaded: 3$"),
            ("my_loader:offline", "'my_loader:offline' cannot be loaded: no network$"),
            ("my_loader:number", "must return arrays by name, or splits train and test, got int"),
        ):
            with pytest.raises(InputError, match=message):
                load_dataset(name)
    finally:
        sys.modules.pop("my_loader", None)


class Partitions:
    """What is used of flwr-datasets' FederatedDataset, which is not a dependency."""

    def __init__(self, sizes):
        self.sizes, self.partitioners = sizes, {"train": self}

    @property
    def num_partitions(self):
        return len(self.sizes)

    def load_partition(self, partition_id, split):
        assert split == "train"
        n = self.sizes[partition_id]
        return pa.table({"x": [[1.0 * partition_id, 2.0]] * n, "label": [k % 2 for k in range(n)]})

    def load_split(self, split):
        return pa.table({"x": [[0.0, 1.0]] * 4, "label": [0, 1, 0, 1]})


def partitions():
    return Partitions([3, 5, 2])


def with_an_empty_partition():
    return Partitions([3, 0, 2])


def test_partitions_of_flwr_datasets_are_clients(here):
    data = load_dataset("test_own_data:partitions")
    np.testing.assert_array_equal(data.info.natural, [[2, 1], [3, 2], [1, 1]])
    np.testing.assert_array_equal(data.train.images[:, 0], [0, 0, 0, 1, 1, 1, 1, 1, 2, 2])
    with pytest.raises(InputError, match=r"'test_own_data:with_an_empty_partition': client 1 has no samples"):
        load_dataset("test_own_data:with_an_empty_partition")


class Words(torch.nn.Module):
    """A user's model of tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(20, 4), torch.nn.Linear(24, 3)

    def forward(self, x):
        return self.out(self.table(x).flatten(1))


@pytest.mark.slow  # torch.func imports a compiler, which takes 3 s of processor time
def test_a_users_module_takes_tokens_and_built_in_models_refuse_them():
    model = make_model("test_own_data:Words", (6,), 3, tokens=20)
    assert model.size == 80 + 75
    for name in ("mlp", "softmax", "cnn"):
        with pytest.raises(InputError, match=f"model {name} takes numbers, but the data set has tokens"):
            make_model(name, (6,), 3, tokens=20)
    with pytest.raises(InputError, match=r"does not accept 6 tokens: index out of range"):
        make_model("test_own_data:Words", (6,), 3, tokens=2000)
    with pytest.raises(InputError, match=r"model cnn needs images \(planes, height, width\), got inputs \(6,\)"):
        make_model("cnn", (6,), 3)
