"""The text task `shakespeare`: the next character in a role's lines, where every role is a client.

The idea is that of LEAF (Caldas et al., 2018): a sample is a window of characters, its label is the character that
follows. The file has one JSON line per role of 37 plays, with its speeches.
"""

import json

import numpy as np

from fedlane.learning.dataset_records import Dataset, DatasetInfo, Samples, SourceFile
from fedlane.records import IntArray
from fedlane.validate import InputError

WINDOW = 20
"""Characters of a sample."""
MIN_CHARACTERS = 8000
"""Roles with shorter texts are left out."""
TRAIN_SHARE = 0.8
"""Share of a role's text, from its beginning, that its training samples come from; the rest is for the test."""
TRAIN_STRIDE, TEST_STRIDE = 2, 25
"""Characters between the labels of two samples."""
ROLES, CHARACTERS = 170, 76

SHAKESPEARE = DatasetInfo(
    name="shakespeare",
    title="Shakespeare's plays by role: the next character",
    input_shape=(WINDOW,),
    classes=CHARACTERS,
    train_per_class=0,
    test_per_class=0,
    licence="public domain",
    folders=("shakespeare", ""),
    files=(
        SourceFile(
            "shakespeare_by_role.jsonl", 4_602_516, "cde61b08e0b6b8f3b4d325697121514cce3ba4e9a769699222dea8dde25d53a5"
        ),
    ),
    tokens=CHARACTERS,
    value_bytes=4,
)


def read_shakespeare(content: bytes) -> Dataset:
    """Return the data set from the content of its file, whose checksum is known."""
    roles = [json.loads(line) for line in content.decode().splitlines()]
    everything = ["\n".join(role["speeches"]) for role in roles]
    alphabet = np.unique(_codes("".join(everything)))
    texts = [np.searchsorted(alphabet, _codes(text)) for text in everything if len(text) >= MIN_CHARACTERS]
    if len(alphabet) != CHARACTERS or len(texts) != ROLES:
        raise InputError(f"dataset shakespeare must have {CHARACTERS} characters and {ROLES} roles")
    cuts = [int(TRAIN_SHARE * len(text)) for text in texts]
    train = [_windows(text[:cut], TRAIN_STRIDE) for text, cut in zip(texts, cuts, strict=True)]
    test = [_windows(text[cut:], TEST_STRIDE) for text, cut in zip(texts, cuts, strict=True)]
    clients = np.repeat(np.arange(len(train)), [len(windows) for windows in train])
    samples = _samples(train, clients)
    counts = np.bincount(clients * CHARACTERS + samples.labels, minlength=ROLES * CHARACTERS)
    info = DatasetInfo(
        **{
            **vars(SHAKESPEARE),
            "totals": tuple(np.bincount(samples.labels, minlength=CHARACTERS).tolist()),
            "natural": counts.reshape(ROLES, CHARACTERS),
        }
    )
    return Dataset(info, samples, _samples(test, None))


def _codes(text: str) -> IntArray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)


def _windows(text: IntArray, stride: int) -> IntArray:
    """Return the windows of a text with the character after each, (n, WINDOW + 1)."""
    return np.lib.stride_tricks.sliding_window_view(text, WINDOW + 1)[::stride]


def _samples(windows: list[IntArray], clients: IntArray | None) -> Samples:
    rows = np.concatenate(windows)
    return Samples(np.ascontiguousarray(rows[:, :WINDOW], np.int32), np.ascontiguousarray(rows[:, WINDOW]), clients)
