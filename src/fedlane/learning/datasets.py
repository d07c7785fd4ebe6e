"""Data sets by name: the built-in ones, whose files are searched, verified and read here, and a user's.

Files are searched in ``$FEDLANE_DATA``, the system's dataset folder and the user's cache, in this order, and otherwise
downloaded from their official site into the cache. Every file's checksum is verified before use.
"""

import functools
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, cast

import numpy as np

from fedlane.cache import cache_folder
from fedlane.learning.dataset_records import Dataset, DatasetInfo, Samples, SourceFile
from fedlane.learning.download import fetch, unpack
from fedlane.learning.own_data import is_own_data, load_own_data
from fedlane.learning.shakespeare import SHAKESPEARE, read_shakespeare
from fedlane.validate import InputError, unknown

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "Samples", "SourceFile", "dataset_info", "load_dataset", "locate"]

SYSTEM = Path("/usr/share/datasets")


_IDX = "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_IDX_SHA256 = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_IDX_SIZES = 47_040_016, 60_008, 7_840_016, 10_008
_CIFAR = *(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"
_CIFAR_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)

DATASETS = {
    info.name: info
    for info in (
        DatasetInfo(
            name="fashion-mnist",
            title="Fashion-MNIST, full",
            input_shape=(1, 28, 28),
            classes=10,
            train_per_class=6000,
            test_per_class=1000,
            licence="MIT",
            folders=("fashion-mnist", ""),
            files=tuple(map(SourceFile, _IDX, _IDX_SIZES, _IDX_SHA256)),
            home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        DatasetInfo(
            name="cifar10",
            title="CIFAR-10, full",
            input_shape=(3, 32, 32),
            classes=10,
            train_per_class=5000,
            test_per_class=1000,
            licence="none stated; cite Krizhevsky 2009",
            folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", ""),
            files=tuple(SourceFile(name, 30_730_000, sha) for name, sha in zip(_CIFAR, _CIFAR_SHA256, strict=True)),
            home="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        ),
        DatasetInfo("fashion-mnist-mini", "Fashion-MNIST, a subset for first runs", (1, 28, 28), 10, 800, 200, "MIT"),
        SHAKESPEARE,
    )
}


def dataset_info(name: str) -> DatasetInfo:
    """Return the properties of a data set by name; a user's data set is loaded first."""
    if is_own_data(name):
        return load_own_data(name).info
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name] if name != SHAKESPEARE.name else _shakespeare().info


def load_dataset(name: str) -> Dataset:
    """Find, verify and read a data set; download it first if it is not on this machine.

    Args:
        name: A built-in data set, or a user's: a file, a folder or ``module:function`` (see `own_data`).
    """
    if is_own_data(name):
        return load_own_data(name)
    if name == SHAKESPEARE.name:
        return _shakespeare()
    info = dataset_info(name)
    if not info.files:
        dataset = _embedded(info)
    else:
        folder = locate(info) or _download(info)
        content = [_verified(folder, file) for file in info.files]
        dataset = _read_cifar(info, content) if info.name == "cifar10" else _read_idx(info, content)
    for part, per_class in ((dataset.train, info.train_per_class), (dataset.test, info.test_per_class)):
        if np.any(np.bincount(part.labels, minlength=info.classes) != per_class):
            raise InputError(f"dataset {name} must have {per_class} samples of each class")
    return dataset


@functools.lru_cache(maxsize=1)
def _shakespeare() -> Dataset:
    """Find, verify and read the text data set, whose label counts are known from its file only."""
    folder, file = locate(SHAKESPEARE), SHAKESPEARE.files[0]
    if folder is None:
        raise InputError(
            f"dataset shakespeare is not on this machine: put {file.name}.xz into a folder shakespeare "
            "of $FEDLANE_DATA (docs/data.md)"
        )
    return read_shakespeare(_verified(folder, file))


def locate(info: DatasetInfo) -> Path | None:
    """Return the first folder that has every file of a data set, compressed or not; None if there is none."""
    for folder in _candidates(info):
        if all(_path(folder, file) for file in info.files):
            return folder
    return None


def _candidates(info: DatasetInfo) -> Iterator[Path]:
    roots = [Path(os.environ["FEDLANE_DATA"])] if os.environ.get("FEDLANE_DATA") else []
    for root in (*roots, SYSTEM, cache_folder()):
        yield from (root / name for name in info.folders)


def _path(folder: Path, file: SourceFile) -> Path | None:
    return next((p for p in _spellings(folder / file.name) if p.is_file()), None)


def _spellings(path: Path) -> tuple[Path, ...]:
    return path, path.with_name(f"{path.name}.gz"), path.with_name(f"{path.name}.xz")


def _opened(path: Path) -> IO[bytes]:
    """Open a file that may be compressed."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def _verified(folder: Path, file: SourceFile) -> bytes:
    path = _path(folder, file)
    assert path is not None
    try:
        with _opened(path) as stored:
            content = stored.read(file.size + 1)  # at most: a small file can hold gigabytes of zeros
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"data file {path} is damaged: {error}") from error
    if len(content) != file.size or hashlib.sha256(content).hexdigest() != file.sha256:
        raise InputError(f"data file {path} is damaged: its checksum does not match the published one")
    return content


def _download(info: DatasetInfo) -> Path:
    """Download a data set into the cache; a file gets its final name only after verification."""
    mirror = os.environ.get("FEDLANE_MIRROR", "").rstrip("/")
    folder = cache_folder() / info.folders[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cache folder {folder} cannot be created: {error.strerror}") from error
    if info.home.endswith(".tar.gz"):
        archive = f"{mirror}/{info.home.rsplit('/', 1)[1]}" if mirror else info.home
        unpack(fetch(archive, folder), folder, {file.name: (file.size, file.sha256) for file in info.files})
    else:
        for file in info.files:
            url = f"{mirror}/{file.name}.gz" if mirror else f"{info.home}{file.name}.gz"
            unpack(fetch(url, folder), folder, {file.name: (file.size, file.sha256)})
    return folder


def _read_idx(info: DatasetInfo, content: list[bytes]) -> Dataset:
    """Read IDX files: a big-endian header of 8 (labels) or 16 (images) bytes, then the values as bytes."""
    height, width = info.input_shape[1:]
    train, train_labels, test, test_labels = (
        np.frombuffer(data, np.uint8, offset=16 if images else 8)
        for data, images in zip(content, (True, False, True, False), strict=True)
    )
    return Dataset(
        info,
        Samples(train.reshape(-1, height, width, 1), train_labels.astype(np.int64)),
        Samples(test.reshape(-1, height, width, 1), test_labels.astype(np.int64)),
    )


def _read_cifar(info: DatasetInfo, content: list[bytes]) -> Dataset:
    """Read binary batches: for each image a label byte, then its red, green and blue planes."""
    planes, height, width = info.input_shape
    rows = np.frombuffer(b"".join(content), np.uint8).reshape(-1, 1 + planes * height * width)
    images = rows[:, 1:].reshape(-1, planes, height, width).transpose(0, 2, 3, 1)
    labels = rows[:, 0].astype(np.int64)
    count = info.classes * info.train_per_class
    return Dataset(
        info,
        Samples(np.ascontiguousarray(images[:count]), labels[:count]),
        Samples(np.ascontiguousarray(images[count:]), labels[count:]),
    )


def _embedded(info: DatasetInfo) -> Dataset:
    """Read the subset that comes with the package."""
    with resources.files("fedlane").joinpath("data", f"{info.name}.npz").open("rb") as file, np.load(file) as arrays:
        return Dataset(
            info,
            Samples(arrays["train_images"][..., None], arrays["train_labels"].astype(np.int64)),
            Samples(arrays["test_images"][..., None], arrays["test_labels"].astype(np.int64)),
        )
