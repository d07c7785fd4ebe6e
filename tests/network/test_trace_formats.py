"""The formats of measured traces: files written by hand, the real sets where they are, and hostile files."""

import csv
import lzma

import numpy as np
import pytest

from fedlane.network import trace_files
from fedlane.network.trace_formats import load_traces
from fedlane.validate import InputError
from support.parts import DATA, missing


@pytest.fixture
def write(tmp_path):
    def written(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())
        return str(path)

    return written


def test_a_plain_table_holds_each_rate_until_the_next_row(write):
    (trace,) = load_traces(write("own.csv", "t_s,mbps\n0,8\n1,0\n\n# pause\n11,4\n13,2\n"))
    assert (trace.name, trace.direction) == ("own", "down")
    np.testing.assert_allclose(trace.edges_s, [0, 1, 11, 13, 15])  # the last row lasts as long as the one before
    np.testing.assert_allclose(trace.rates_bps, [8e6, 0, 4e6, 2e6])


@pytest.mark.parametrize(
    ("name", "head", "direction", "scale"),
    [
        ("a.csv", "t_s,mbps", "down", 1e6),
        ("a.up.csv", "t_s,mbps", "up", 1e6),
        ("a.csv", "t_s,ul_kbps", "up", 1e3),
        ("a.csv", "t_s,up_mbps", "up", 1e6),
        ("a.csv.xz", "t_s,dl_kbps", "down", 1e3),
    ],
)
def test_a_plain_table_declares_its_direction(write, name, head, direction, scale):
    (trace,) = load_traces(write(name, f"{head}\n0,8\n1,4\n"))
    assert trace.direction == direction
    np.testing.assert_allclose(trace.rates_bps, [8 * scale, 4 * scale])


def test_a_plain_table_may_have_both_directions_or_no_header(write):
    down, up = load_traces(write("both.csv", "t_s,dl_mbps,ul_mbps\n0,8,1\n2,4,2\n"))
    assert (down.name, down.direction, up.name, up.direction) == ("both", "down", "both", "up")
    np.testing.assert_allclose(up.rates_bps, [1e6, 2e6])
    (bare,) = load_traces(write("bare.log", "0.0 3.5\n0.5 4\n"))
    np.testing.assert_allclose(bare.rates_bps, [3.5e6, 4e6])
    (alone,) = load_traces(write("both.csv", "t_s,dl_mbps,ul_mbps\n0,8,1\n2,4,2\n"), "up")
    assert alone.direction == "up"
    with pytest.raises(InputError, match="has no uplink"):
        load_traces(write("own.csv", "t_s,mbps\n0,8\n1,4\n"), "up")


def test_norway_s_layout_has_one_trace_per_name_and_gaps_after_five_seconds(write):
    bus, tram = load_traces(write("norway.csv", "trace,t_s,dl_mbps\nbus,0,4\nbus,1,2\nbus,21,3\ntram,0,1\ntram,2,1\n"))
    assert (bus.name, tram.name) == ("bus", "tram")
    np.testing.assert_allclose(bus.edges_s, [0, 1, 6, 21, 26])
    np.testing.assert_allclose(bus.rates_bps, [4e6, 2e6, 0, 3e6])


def test_5gophers_runs_are_traces_and_missing_seconds_are_silent(write):
    head = "protocol,carrier,run_num,seq_num,throughput_mbps\n"
    rows = "TCP,A,1,0,10\nTCP,A,1,1,20\nTCP,A,1,4,30\nTCP,A,2,0,1\nTCP,A,2,1,2\nTCP,B,2,2,5\nTCP,B,2,3,6\nICMP,B,2,4,\n"
    first, second, third = load_traces(write("runs.csv", head + rows))
    np.testing.assert_allclose(first.edges_s, [0, 1, 2, 4, 5])
    np.testing.assert_allclose(first.rates_bps, [10e6, 20e6, 0, 30e6])
    np.testing.assert_allclose(second.rates_bps, [1e6, 2e6])
    np.testing.assert_allclose(third.rates_bps, [5e6, 6e6])
    assert {trace.direction for trace in (first, second, third)} == {"down"}
    assert len({first.name, second.name, third.name}) == 3
    head = "protocol,num_tcp_conn,seq_num,Sprint_throughput_mbps,Verizon_throughput_mbps\n"
    sprint, verizon = load_traces(write("car.csv", head + "TCP,8,0,1,3\nTCP,8,1,2,4\n"))
    np.testing.assert_allclose([sprint.rates_bps, verizon.rates_bps], [[1e6, 2e6], [3e6, 4e6]])
    assert "Sprint" in sprint.name


def test_mahimahi_s_lines_are_packets_of_12_kbit(write):
    down = write("link.down", "0\n0\n50\n99\n250\n")
    write("link.up.xz", "0\n100\n")  # compressed differently: not this file's partner
    (trace,) = load_traces(down)
    np.testing.assert_allclose(trace.edges_s, [0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(trace.rates_bps, [4 * 120e3, 0, 120e3])
    write("link.up", "0\n100\n")
    pair = load_traces(down)
    assert [(trace.name, trace.direction) for trace in pair] == [("link", "down"), ("link", "up")]


def test_packets_per_100_ms_are_mahimahi_s_rates(tmp_path):
    np.savez(tmp_path / "packets.npz", **{"x.up": np.array([1, 2], np.uint16), "x.down": np.array([3, 0], np.uint16)})
    up, down = load_traces(str(tmp_path / "packets.npz"))
    assert (up.name, up.direction, down.name, down.direction) == ("x", "up", "x", "down")
    np.testing.assert_allclose([up.rates_bps, down.rates_bps], [[0.12e6, 0.24e6], [0.36e6, 0]])


UCC = "trace,app,mobility,t_s,rsrp_dbm,dl_kbps,ul_kbps,state\n"
UCC_LOG = "Timestamp,Longitude,RSRP,DL_bitrate,UL_bitrate,State\n"


def test_ucc_s_downloads_are_averaged_by_the_second(write):
    first_second = "x,Download,D,0,-90,1000,9,D\nx,Download,D,0,-90,3000,9,D\n"
    rows = f"v,Netflix,D,0,-90,9,9,D\n{first_second}x,Download,D,2,-90,500,9,I\n"
    (trace,) = load_traces(write("ucc.csv", UCC + rows))
    np.testing.assert_allclose(trace.edges_s, [0, 2, 4])
    np.testing.assert_allclose(trace.rates_bps, [2e6, 0.5e6])
    log = "2019.12.31_23.59.59,-8.3,-100,700,20,D\n2020.01.01_00.00.00,-8.3,-100,800,20,D\n"
    (trace,) = load_traces(write("B_2019.csv", UCC_LOG + log))
    np.testing.assert_allclose(trace.edges_s, [0, 1, 2])
    np.testing.assert_allclose(trace.rates_bps, [0.7e6, 0.8e6])


def test_ucc_s_uplink_is_refused(write):
    tidy = write("ucc.csv", UCC + "x,Download,D,0,-90,1000,9,D\nx,Download,D,1,-90,1000,9,D\n")
    log = write("log.csv", UCC_LOG + "2020.01.01_00.00.00,-8.3,-100,800,20,D\n2020.01.01_00.00.01,-8.3,-100,800,20,D\n")
    cut = write("cut.csv", "t_s,UL_bitrate\n0,20\n1,20\n")
    for path, direction in ((tidy, "up"), (log, "up"), (cut, None)):
        with pytest.raises(InputError, match=r"acknowledgements.*network\.uplink_share"):
            load_traces(path, direction)


HOSTILE = [
    ("t_s,mbps\n0,0\n1,0\n", "all its rates are 0"),
    ("t_s,mbps\n0,5\n", "at least two rows"),
    ("t_s,mbps\n", "no rows"),
    ("", "it is empty"),
    ("t_s,mbps\n0,5\n2,5\n1,5\n", "times must increase, but 1 s follows 2 s"),
    ("t_s,mbps\n0,5\n0,5\n1,5\n", "times must increase"),
    ("t_s,mbps\n0,5\n1,-2\n", "got -2 Mbit/s"),
    ("t_s,mbps\n0,5\n1,nan\n", "got nan Mbit/s"),
    ("t_s,mbps\n0,5\n1,1e999\n", "rates must be between"),
    ("t_s,mbps\nnan,5\n1,5\n", "times must be finite"),
    ("t_s,mbps\n0,5\n1\n", "column mbps must hold a number"),
    ("t_s,mbps\n0,5\n1,fast\n", "column mbps must hold a number"),
    ("t_s,speed\n0,5\n1,5\n", "no column of rates"),
    ("mbps\n5\n6\n", "no column t_s"),
    ("0\n", "at least two rows"),
    ("5\n3\n9\n", "must not run backwards"),
    ("5\nword\n", "cannot read the trace"),
    ("5\n99999999999999999999\n", "cannot read the trace"),
    ("1\n9999999999999\n", "between 0 and 30 days"),
    (UCC + "x,Download,D,1,-90,10,9,D\nx,Download,D,0,-90,10,9,D\n", "times must increase"),
    (UCC + "x,Netflix,D,1,-90,10,9,D\n", "no usable link"),
    ("run_num,seq_num,throughput_mbps\n1,0,5\n", "at least two rows"),
    ("run_num,seq_num,throughput_mbps\n1,0,0\n1,1,0\n", "all its rates are 0"),
    ("\x00\x01\xff", "no column of rates"),
]


@pytest.mark.parametrize(("text", "message"), HOSTILE)
@pytest.mark.parametrize("ending", ["csv", "csv.xz"])
def test_a_hostile_file_is_one_clear_line(write, text, message, ending):
    with pytest.raises(InputError, match=message) as error:
        load_traces(write(f"bad.{ending}", text))
    assert "\n" not in str(error.value)
    assert "bad" in str(error.value)
    assert str(error.value).isprintable()


def test_a_missing_huge_or_damaged_file_is_one_clear_line(write, tmp_path, monkeypatch):
    for absent in ("nothing.csv", "", "x" * 5000):
        with pytest.raises(InputError, match="does not exist, here or in the folder FEDLANE_DATA"):
            load_traces(absent)
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"1\n2\n" * 9)[:-20])
    (tmp_path / "noise.xz").write_bytes(b"noise")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "noise.npz").write_bytes(b"noise")
    np.savez(tmp_path / "words.npz", x=np.array(["a", "b"]))
    for name in ("cut.xz", "noise.xz", "binary.csv", "noise.npz", "words.npz"):
        with pytest.raises(InputError, match=r"trace .*") as error:
            load_traces(str(tmp_path / name))
        assert "\n" not in str(error.value)
    monkeypatch.setattr(trace_files, "MAX_BYTES", 1000)
    for name in ("big.csv", "bomb.csv.xz"):
        with pytest.raises(InputError, match=r"cannot read the trace .*: it has .* bytes"):
            load_traces(write(name, "t_s,mbps\n" + "0,1\n" * 1000))


def test_a_folder_holds_the_traces_of_all_its_files(write, tmp_path, monkeypatch):
    write("set/walk/a.csv", "t_s,mbps\n0,1\n1,1\n")
    write("set/b.up", "0\n100\n")
    write("set/b.down", "0\n100\n")
    write("set/rtt.csv", "rtt_ms,carrier\n1,A\n")  # not a trace
    write("set/README.md", "words")
    monkeypatch.setenv("FEDLANE_DATA", str(tmp_path))
    traces = load_traces("set")
    assert [(trace.name, trace.direction) for trace in traces] == [("b", "down"), ("b", "up"), ("walk/a", "down")]
    write("empty/README.md", "words")
    with pytest.raises(InputError, match="no usable link"):
        load_traces("empty")


@pytest.fixture
def real(monkeypatch):
    folder = DATA
    if not (folder / "traces" / "ucc_5g").is_dir():
        missing("the measured traces are not here (FEDLANE_DATA)")
    monkeypatch.setenv("FEDLANE_DATA", str(folder))
    return folder / "traces"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "down", "up"), [("5gophers", 297, 0), ("norway_hsdpa", 224, 0), ("mahimahi", 7, 8), ("ucc_5g", 21, 0)]
)
def test_the_real_sets_are_read(name, down, up, real):
    """224 traces of Norway, 15 of Mahimahi and UCC's 21 downloads, as the sets' descriptions count them."""
    traces = load_traces(name)
    assert [sum(trace.direction == direction for trace in traces) for direction in ("down", "up")] == [down, up]
    assert all(0.01e6 < trace.mean_bps < 3e9 for trace in traces)


def test_no_measured_bit_of_5gophers_is_lost(real):
    """The bits of the driving trace are the sum of its rows, because every row is one second."""
    text = (real / "5gophers/All-Carriers/03-User-Mobility/car-driving-trace-1.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    for trace in load_traces("5gophers/All-Carriers/03-User-Mobility/car-driving-trace-1.csv"):
        (carrier,) = [name for name in ("Sprint", "TMobile", "Verizon") if name in trace.name]
        megabits = sum(float(row[f"{carrier}_throughput_mbps"]) for row in rows)
        assert trace.mean_bps * trace.duration_s == pytest.approx(megabits * 1e6)
        assert trace.duration_s == 1 + float(rows[-1]["seq_num"]) - float(rows[0]["seq_num"])  # gaps are not cut out


def test_mahimahi_s_text_equals_its_packet_counts(real):
    counted = {(trace.name, trace.direction): trace for trace in load_traces("mahimahi")}
    pair = load_traces("mahimahi/Verizon-LTE-short.down.xz")
    assert [trace.direction for trace in pair] == ["down", "up"]
    for trace in pair:
        np.testing.assert_array_equal(trace.rates_bps, counted[trace.name, trace.direction].rates_bps)
        text = lzma.decompress((real / "mahimahi" / f"{trace.name}.{trace.direction}.xz").read_bytes())
        assert trace.mean_bps * trace.duration_s == pytest.approx(12_000 * len(text.splitlines()))
