"""Notes on scenarios, terminals that are not UTF-8, and devices that are full."""

import errno
import io
import sys
from pathlib import Path
from unittest import mock

import pytest

from fedlane.cli import main
from fedlane.cli.streams import output_error
from fedlane.simulation import results
from support.terminal import fedlane, fedlane_process

SHORT = ("--rounds", "4", "--no-learning")


@pytest.fixture
def mine(tmp_path):
    """A scenario whose [privacy] table has no mechanism."""
    (tmp_path / "mine.toml").write_text("[data]\ndataset = 'fashion-mnist-mini'\n[privacy]\nepsilon = 2.0\n")
    return tmp_path


def test_a_chosen_mechanism_is_said_in_one_line(mine):
    result = fedlane("show", "mine.toml", cwd=mine, code=0)
    assert result.stderr.splitlines() == [
        'Note: mine has [privacy] without a mechanism, so "rigorous" is used: epsilon holds for the whole run.'
    ]
    assert 'mechanism = "rigorous"' in result.stdout


def test_a_quiet_command_does_not_say_it(mine):
    words = ("run", "mine.toml", "--policy", "lne")
    said, quiet = (fedlane(*words, *more, cwd=mine, code=2).stderr.splitlines() for more in ((), ("--quiet",)))
    assert [line[:8] for line in said] == ["Note: mi", "fedlane:"]
    assert said[1:] == quiet


def test_an_inline_table_keeps_the_mechanism(tmp_path):
    result = fedlane("show", "quickstart", "--set", "privacy={epsilon=3.0}", cwd=tmp_path, code=0)
    assert 'mechanism = "rigorous"\nepsilon = 3.0\ndelta = 1e-05' in result.stdout
    assert result.stderr == ""


class Stream(io.TextIOWrapper):
    """A stream with the encoding of a terminal that is not UTF-8."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii", errors="strict")


def test_an_ascii_terminal_gets_ascii(monkeypatch, tmp_path):
    out, err = Stream(), Stream()
    monkeypatch.chdir(tmp_path)
    words = ["fedlane", "compare", "quickstart", "--policy", "lane", "--seeds", "2", *SHORT, "--out", "o"]
    with mock.patch.object(sys, "argv", words), mock.patch.multiple(sys, stdout=out, stderr=err):
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    text = out.buffer.getvalue().decode("ascii")
    assert "mean +- 95% interval" in text
    assert "Traceback" not in err.buffer.getvalue().decode("ascii")


def test_toml_on_an_ascii_terminal_can_be_read_again(monkeypatch, tmp_path):
    import tomllib

    out = Stream()
    with (
        mock.patch.object(sys, "argv", ["fedlane", "show", "quickstart", "--set", "name=Z\u00fcrich \U0001f600"]),
        mock.patch.object(sys, "stdout", out),
        pytest.raises(SystemExit),
    ):
        main()
    assert tomllib.loads(out.buffer.getvalue().decode("ascii"))["name"] == "Z\u00fcrich \U0001f600"


class Full(io.StringIO):
    """A stream on a full device."""

    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_device_is_reported_in_one_line(tmp_path):
    err = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fedlane", "show", "quickstart"]),
        mock.patch.multiple(sys, stdout=Full(), stderr=err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert end.value.code == 2
    assert err.getvalue() == "fedlane: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_dev_full_in_a_process(tmp_path):
    import subprocess

    from support.terminal import COMMAND

    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([COMMAND, "list", "scenarios"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (
        2,
        "fedlane: the output cannot be written: No space left on device\n",
    )
    ascii_only = fedlane_process("list", "policies", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii", "LANG": "C"})
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")


def test_a_reader_that_has_left_is_no_error():
    assert output_error(OSError(errno.EPIPE, "Broken pipe")) is None
    assert output_error(OSError(errno.EACCES, "Permission denied", "a/b")) == "a/b: Permission denied"


def test_a_disk_that_fills_up_during_a_run_names_what_is_saved(monkeypatch, tmp_path):
    from fedlane.cli import session

    written, write_files = [], results._write_files

    def filling(run, folder, interrupted):
        written.append(run.summary["rounds"])
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_files(run, folder, interrupted)

    monkeypatch.setattr(session, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(session, "LONG_SAVE_S", float("inf"))  # a busy machine saves slowly
    monkeypatch.setattr(results, "_write_files", filling)
    (line,) = fedlane("run", *SHORT, "--quiet", "--out", "o", cwd=tmp_path, code=2).stderr.splitlines()
    assert line == ("fedlane: output folder o cannot be written: No space left on device; its first 2 rounds are saved")
