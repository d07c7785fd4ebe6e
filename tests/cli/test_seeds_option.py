"""`--seeds K` and `--seeds A:B`."""

import json

import pytest

from fedlane.cli.options import parsed_seeds
from fedlane.experiments.reproduce import FIGURES, ReproductionPlan
from fedlane.experiments.store import Experiment
from fedlane.validate import InputError
from support.terminal import fedlane


def test_a_number_and_a_range():
    assert parsed_seeds("--seeds", "3") == range(3)
    assert parsed_seeds("--seeds", "10:13") == range(10, 13)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "--seeds must be at least 1, got 0"),
        ("-2", "--seeds must be at least 1, got -2"),
        ("5:5", "--seeds 5:5 names no seed: the second number must be greater than the first"),
        ("-1:4", "the first seed of --seeds must be at least 0, got -1"),
        ("1:2:3", r"--seeds must be K \(seeds 0 to K-1\) or A:B \(seeds A to B-1\), got '1:2:3'"),
        ("many", "--seeds must be K .* got 'many'"),
        ("3:", "--seeds must be K .* got '3:'"),
        (f"5:{2**64}", "--seeds must name seeds less than 2^63".replace("^", r"\^")),
    ],
)
def test_other_values_are_refused_in_one_line(text, message):
    with pytest.raises(InputError, match=message):
        parsed_seeds("--seeds", text)


def test_a_range_plays_the_same_seeds_as_single_runs(tmp_path):
    options = ("--rounds", "6", "--no-learning", "--json")
    together = json.loads(fedlane("run", "--seeds", "7:9", *options, "--out", "o", cwd=tmp_path, code=0).stdout)
    assert together["seeds"] == [7, 8]
    alone = json.loads(fedlane("run", "--seed", "8", *options, "--out", "p", cwd=tmp_path, code=0).stdout)
    mean = json.loads(fedlane("run", "--seed", "7", *options, "--out", "q", cwd=tmp_path, code=0).stdout)
    delays = [run["cumulative_delay_s"]["mean"] for run in (alone, mean)]
    assert together["cumulative_delay_s"]["mean"] == pytest.approx(sum(delays) / 2)


def test_compare_takes_a_range(tmp_path):
    words = ("compare", "quickstart", "--policy", "random", "--seeds", "4:6", "--rounds", "5", "--no-learning")
    result = json.loads(fedlane(*words, "--json", "--out", "o", cwd=tmp_path, code=0).stdout)
    assert [run["seeds"] for run in result["runs"]] == [[4, 5]]


def test_reproduce_plans_ranges_of_seeds():
    plan = ReproductionPlan(FIGURES, 4, 2, first_delay_seed=20, first_learning_seed=30)
    lane = Experiment("fashion-mnist", "lane")
    assert list(plan.seeds(lane)) == [20, 21, 22, 23, 30, 31]
    assert list(plan.learned_seeds) == [30, 31]
