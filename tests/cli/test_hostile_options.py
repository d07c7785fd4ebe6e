"""Values on the command line that nobody means: one line and exit code 2, at once, before anything is computed."""

import sys

import pytest

import fedlane.cli
from support.terminal import fedlane

LONG = "é" * 3000
STEPS = ("--delta", "1e-5", "--size", "600", "--batch", "64", "--uploads", "20")
PAPER = ("privacy", "account", "--mechanism", "paper", "--epsilon", "8", *STEPS)
COMPARE = ("compare", "quickstart", "--policy", "random", "--rounds", "2", "--no-learning")
HUGE, LARGEST = "9" * 20, str(2**63 - 1)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", LONG),
        ("run", "--resume", LONG),
        ("run", "--save-schedule", LONG),
        ("show", LONG),
        ("report", LONG),
        ("plot", LONG, "--out", "x.pdf"),
        ("watch", LONG),
        (*COMPARE, "--with", LONG),
        ("privacy", "account", LONG),
        ("privacy", "audit", LONG),
        ("privacy", "new-ledger", LONG, "--client", "c"),
        ("reproduce", "--import", LONG),
        ("reproduce", "--export", LONG),
        ("reproduce", "--export", "/dev/null"),
        ("testbed", LONG),
        ("testbed", "--trace", LONG),
        ("run", "--seeds", HUGE),
        (*COMPARE, "--seeds", HUGE),
        ("reproduce", "--seeds", HUGE),
        ("reproduce", "--seeds", str(2**62)),
        ("reproduce", "--delay-seeds", LARGEST),
        ("reproduce", "--device", "x"),
        ("testbed", "--clients", HUGE),
        ("testbed", "--clients", LARGEST),
        ("testbed", "--lanes", LARGEST),
        ("testbed", "--rounds", LARGEST),
        (*PAPER, "--iterations", LARGEST),
        (*PAPER, "--iterations", HUGE),
        ("privacy", "calibrate", "--epsilon", "8", *STEPS, "--histogram-noise", "1e308"),
        ("privacy", "calibrate", "--epsilon", "8", *STEPS, "--histogram-noise", "1e-308"),
        ("privacy", "calibrate", "--epsilon", "8", *STEPS, "--delta", "0.999999999"),
        ("privacy", "calibrate", "quickstart", "--set", "privacy.delta=0.999999999"),
        ("privacy", "calibrate", "--epsilon", "5.93e-7", *STEPS, "--size", "147097378123"),
        ("run", "--set", "learning.clip_norm=1e-20"),
        ("run", "--set", "learning.clip_norm=1e25"),
        ("privacy", "audit", "--trials", HUGE),
        ("privacy", "audit", "--trials", str(2**31)),
        ("run", "--set", "policies.lane.exploration=1" + "0" * 400),
        ("run", "--policy", "lane:V=1e400"),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG")[:60].replace("/", " "),
)
def test_hostile_options_are_one_line(words, tmp_path, monkeypatch):
    def compute(*arguments, **options):
        raise AssertionError("schedules were computed before the options were checked")

    monkeypatch.setattr(sys.modules["fedlane.cli.reproduce"], "_compute", compute)
    result = fedlane(*words, cwd=tmp_path, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedlane: ")


def test_tiny_noise_spends_everything(tmp_path):
    result = fedlane("privacy", "account", "--noise", "1e-308", *STEPS, cwd=tmp_path, code=0)
    assert "inf" in result.stdout


def test_a_scenario_with_a_long_name_gets_a_folder(tmp_path):
    (tmp_path / "long.toml").write_text(f'name = "{"x" * 300}"\n')
    fedlane("run", "long.toml", "--rounds", "2", "--no-learning", "--quiet", cwd=tmp_path, code=0)
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(folder.name.encode()) < 255


@pytest.mark.slow
def test_names_from_options_print_no_control_characters(tmp_path):
    name = "\x1b[31mred"
    for words in (
        ("privacy", "new-ledger", "ledger", "--client", name),
        ("show", "quickstart", "--picture", f"{name}.png"),
    ):
        result = fedlane(*words, cwd=tmp_path, code=0)
        assert "\x1b" not in result.stdout + result.stderr
