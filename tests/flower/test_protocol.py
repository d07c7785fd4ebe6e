"""Records are read as they were written, and malformed ones are refused."""

from dataclasses import fields, replace

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedlane.flower.protocol import KEY, Hello, Introduction, Order, ProtocolError, Report
from support.wire_records import introduction, order, report

HELLO, INTRODUCTION, ORDER, REPORT = RECORDS = [
    Hello("f"),
    introduction(label_counts=(100.0, 200.5), uploads=3),
    order(),
    report(),
]
names = [type(record).__name__ for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=names)
def test_a_record_is_read_as_it_was_written(record):
    assert type(record).read(RecordDict({KEY: record.record()})) == record


@pytest.mark.parametrize("record", RECORDS, ids=names)
def test_every_field_is_required_and_typed(record):
    for field in fields(record):
        missing = record.record()
        del missing[field.name]
        with pytest.raises(ProtocolError, match=field.name):
            type(record).read(RecordDict({KEY: missing}))
        for wrong in (b"bytes", [b"x"], float("nan")):
            bad = record.record()
            bad[field.name] = wrong
            with pytest.raises(ProtocolError, match=field.name):
                type(record).read(RecordDict({KEY: bad}))


def test_another_kind_or_version_is_refused():
    with pytest.raises(ProtocolError, match="no Order"):
        Order.read(RecordDict({}))
    with pytest.raises(ProtocolError, match="no Order"):
        Order.read(RecordDict({KEY: HELLO.record()}))
    newer = ORDER.record()
    newer["version"] = 2
    with pytest.raises(ProtocolError, match="version 2"):
        Order.read(RecordDict({KEY: newer}))
    with pytest.raises(ProtocolError, match="no Hello"):
        Hello.read(RecordDict({KEY: ConfigRecord({})}))


@pytest.mark.parametrize(
    "bad",
    [
        replace(INTRODUCTION, name=""),
        replace(INTRODUCTION, name="a\nb"),
        replace(INTRODUCTION, size=0.0),
        replace(INTRODUCTION, size=1e13),
        replace(INTRODUCTION, label_counts=(1.0, -1e300)),
        replace(INTRODUCTION, upload_noise=1e-300),
        replace(INTRODUCTION, uploads=-1),
        *(
            replace(INTRODUCTION, **{count: 2**power})
            for count in ("batch_size", "local_iterations", "max_uploads", "uploads")
            for power in (31, 62)
        ),
        replace(REPORT, uploads=2**62),
        replace(REPORT, max_uploads=2**31),
        replace(REPORT, compute_s=1e300),
        replace(ORDER, round=-1),
        replace(ORDER, deadline_s=0.0),
        replace(REPORT, status="fine"),
        replace(REPORT, compute_s=-1.0),
        replace(REPORT, reason="x" * 2001),
        *(replace(REPORT, epsilon=epsilon) for epsilon in (2**62, 2**53 + 1, 1e13, -0.1)),
        *(replace(REPORT, delta=delta) for delta in (-1e-9, 1.5)),
    ],
)
def test_values_out_of_bounds_are_refused(bad):
    with pytest.raises(ProtocolError):
        type(bad).read(RecordDict({KEY: bad.record()}))


def test_an_integer_in_place_of_a_float_becomes_one():
    """A table's column of floats refuses integers above 2**53."""
    read = Report.read(RecordDict({KEY: replace(REPORT, epsilon=10**12, compute_s=7).record()}))
    assert (type(read.epsilon), read.epsilon, type(read.compute_s)) == (float, 1e12, float)
    claims = Introduction.read(RecordDict({KEY: replace(INTRODUCTION, label_counts=(3, 4)).record()}))
    assert [type(count) for count in claims.label_counts] == [float, float]


def test_the_largest_counts_of_an_introduction_fit_a_run_folder():
    """A server writes its clients' counts into scenario.toml; one that the scenario refuses would end the run."""
    from fedlane import Scenario

    largest = replace(INTRODUCTION, batch_size=2**31 - 1, local_iterations=2**31 - 1, max_uploads=2**31 - 1)
    assert Introduction.read(RecordDict({KEY: largest.record()})) == largest
    changes = {
        "learning.batch_size": [largest.batch_size],
        "learning.local_iterations": largest.local_iterations,
        "privacy.mechanism": "rigorous",
        "privacy.max_uploads": [largest.max_uploads],
        "network.clients": 1,
    }
    Scenario().with_values(changes)
