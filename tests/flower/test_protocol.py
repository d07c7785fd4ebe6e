"""What is said is understood, and what does not fit is refused."""

from dataclasses import fields, replace

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedlane.flower.protocol import KEY, Hello, Introduction, Order, ProtocolError, Report

SAID = [
    Hello("f"),
    Introduction("c0", 300.0, (100.0, 200.5), 8.0, 1e-5, 140, 3, 32, 5, 0.5),
    Order("f", "c0", 0, 1, 10.0, 5, 3),
    Report("c0", 0, 1, "trained", "", 0.4, 0.0, 4, 140, 1.5, 1e-5),
]
names = [type(said).__name__ for said in SAID]


@pytest.mark.parametrize("said", SAID, ids=names)
def test_what_is_said_is_read_back(said):
    assert type(said).read(RecordDict({KEY: said.record()})) == said


@pytest.mark.parametrize("said", SAID, ids=names)
def test_every_field_is_needed_and_typed(said):
    for field in fields(said):
        missing = said.record()
        del missing[field.name]
        with pytest.raises(ProtocolError, match=field.name):
            type(said).read(RecordDict({KEY: missing}))
        for wrong in (b"bytes", [b"x"], float("nan")):
            bad = said.record()
            bad[field.name] = wrong
            with pytest.raises(ProtocolError, match=field.name):
                type(said).read(RecordDict({KEY: bad}))


def test_another_kind_version_or_nothing_is_refused():
    with pytest.raises(ProtocolError, match="no Order"):
        Order.read(RecordDict({}))
    with pytest.raises(ProtocolError, match="no Order"):
        Order.read(RecordDict({KEY: SAID[0].record()}))
    newer = SAID[2].record()
    newer["version"] = 2
    with pytest.raises(ProtocolError, match="version 2"):
        Order.read(RecordDict({KEY: newer}))
    with pytest.raises(ProtocolError, match="no Hello"):
        Hello.read(RecordDict({KEY: ConfigRecord({})}))


@pytest.mark.parametrize(
    "bad",
    [
        replace(SAID[1], name=""),
        replace(SAID[1], name="a\nb"),
        replace(SAID[1], size=0.0),
        replace(SAID[1], size=1e13),
        replace(SAID[1], label_counts=(1.0, -1e300)),
        replace(SAID[1], upload_noise=1e-300),
        replace(SAID[1], uploads=-1),
        replace(SAID[2], round=-1),
        replace(SAID[2], deadline_s=0.0),
        replace(SAID[3], status="fine"),
        replace(SAID[3], compute_s=-1.0),
        replace(SAID[3], reason="x" * 2001),
    ],
)
def test_values_out_of_bounds_are_refused(bad):
    with pytest.raises(ProtocolError):
        type(bad).read(RecordDict({KEY: bad.record()}))
