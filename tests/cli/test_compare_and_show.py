"""`fedlane compare`, `show` and `list`: their folders, tables and pictures."""

import json

import pytest

from support.terminal import fedlane


@pytest.mark.slow
def test_compare_saves_a_folder_per_policy_that_show_reads(tmp_path):
    names = ("lane", "mamab-om:V=10,T0=5", "random")
    options = [part for name in names for part in ("--policy", name)]
    words = ("compare", "quickstart", *options, "--seeds", "2", "--rounds", "2", "--no-learning", "--out", "o")
    result = fedlane(*words, cwd=tmp_path, code=0)
    folders = sorted(path.parent.name for path in (tmp_path / "o").rglob("summary.json"))
    assert folders == ["lane", "mamab-om-V-10-T0-5", "random"]
    for name in names:
        assert name.split(":")[0] in result.stdout
    assert "lane" in fedlane("show", "o/lane", cwd=tmp_path).stdout
    assert json.loads(fedlane("show", "o/lane", "--json", cwd=tmp_path).stdout)["policy"] == "lane"


@pytest.mark.slow
def test_compare_with_learning_draws_accuracy(tmp_path):
    options = ("--policy", "lane", "--policy", "random", "--rounds", "10", "--seeds", "2", "--target", "0.2")
    result = fedlane("compare", "quickstart", *options, "--out", "o", cwd=tmp_path, code=0)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "accuracy" in result.stdout
    assert (tmp_path / "o" / "accuracy.png").stat().st_size > 10_000


def test_a_scenario_that_is_shown_can_be_loaded_again(tmp_path):
    shown = fedlane("show", "paper-cifar10", "--set", "network.clients=12", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(shown.stdout)
    assert fedlane("show", "mine.toml", cwd=tmp_path).stdout == shown.stdout
    assert json.loads(fedlane("show", "mine.toml", "--json", cwd=tmp_path).stdout)["network"]["clients"] == 12


@pytest.mark.slow
def test_show_draws_the_partition(tmp_path):
    fedlane("show", "quickstart", "--picture", "p.png", cwd=tmp_path, code=0)
    assert (tmp_path / "p.png").stat().st_size > 5_000
    result = fedlane("show", "quickstart", "--picture", "p.nonsense", cwd=tmp_path, code=2)
    assert "picture p.nonsense cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("kind", "word"), [("policies", "mamab-gmba"), ("scenarios", "paper-cifar10-literal"), ("datasets", "cifar10")]
)
def test_list_prints_a_table_or_json(kind, word, tmp_path):
    assert word in fedlane("list", kind, cwd=tmp_path).stdout
    rows = json.loads(fedlane("list", kind, "--json", cwd=tmp_path).stdout)
    assert word in [next(iter(row.values())) for row in rows]
