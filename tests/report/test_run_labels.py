"""Labels of runs: what differs between them; their natural order."""

import pytest

from fedlane.report.run_files import RunFiles
from fedlane.report.run_labels import differences, natural_key, run_names, seeds_text, shared_policy


def run(folder="run", policy="lane", parameters=None, seeds=(0, 1), name="quickstart", accuracy=0.7, **values):
    """A run folder's contents, as far as labels need them; ``network_clients=5`` sets network.clients."""
    scenario = {"name": name, "rounds": 200, "network": {"clients": 10, "deadline_s": 5.0}, "policies": {}}
    for key, value in values.items():
        section, _, field = key.partition("_")
        scenario[section] = {**scenario.get(section, {}), field: value} if field else value
    summary = {
        "policy": policy,
        "parameters": parameters or {},
        "scenario": name,
        "seeds": list(seeds),
        "final_accuracy": {"mean": accuracy},
    }
    return RunFiles(folder, "", scenario, summary, {}, {}, 0.0)


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([run()], ["lane"]),
        ([run(policy="lane"), run(policy="random")], ["lane", "random"]),
        ([run(policy="lane:V=2"), run(policy="lane:V=10")], ["V=2", "V=10"]),
        (
            [run(policy="lane"), run(policy="mamab-om:V=2,T0=5"), run(policy="mamab-om:V=10,T0=5")],
            ["lane", "mamab-om:V=2", "mamab-om:V=10"],
        ),
        ([run(policy="lane:V=2"), run(policy="my.module:Policy")], ["lane:V=2", "my.module:Policy"]),
        # set in the scenario instead of in the policy's name
        ([run(parameters={"V": 2.0, "x": 1}), run(parameters={"V": 10.0, "x": 1})], ["V=2", "V=10"]),
        ([run(network_clients=5), run(network_clients=20)], ["clients=5", "clients=20"]),
        ([run(seeds=(0, 1)), run(seeds=(2, 3, 4))], ["seeds 0 to 1", "seeds 2 to 4"]),
        ([run(policy="lane"), run(policy="random", seeds=[7])], ["lane, seeds 0 to 1", "random, seed 7"]),
        ([run(rounds=100), run(rounds=200)], ["rounds=100", "rounds=200"]),
        ([run(), run(accuracy=None)], ["learning", "no learning"]),
        # scenarios that differ in many keys are named; keys only tell runs of one scenario apart
        (
            [run(name="a", network_clients=5), run(name="b", rounds=7), run(name="b", rounds=8)],
            ["a", "b, rounds=7", "b, rounds=8"],
        ),
        ([run("first"), run("second")], ["lane (first)", "lane (second)"]),
        ([run("same"), run("same")], ["lane (same)", "lane (same) #2"]),
        ([run(learning_target_accuracy=0.5), run("b")], ["lane (run)", "lane (b)"]),
    ],
)
def test_a_label_says_what_differs(runs, labels):
    assert run_names(runs) == labels


def test_a_label_lists_a_few_keys_and_counts_the_others():
    changed = {f"data_key{k}": k for k in range(6)}
    first, second = run_names([run(**changed), run(**{key: value + 1 for key, value in changed.items()})])
    assert first == "key0=0, key1=1, key2=2, 3 more keys"
    assert second == "key0=1, key1=2, key2=3, 3 more keys"


def test_keys_with_the_same_ending_are_written_in_full():
    first, _ = run_names([run(network_model="paper", compute_model="a"), run(network_model="city", compute_model="b")])
    assert first == "network.model=paper, compute.model=a"


def test_long_values_do_not_make_long_labels():
    rates = [[float(k), 2.0] for k in range(40)]
    assert run_names([run(network_rates_mbps=rates), run()]) == ["rates_mbps=[40 values]", "rates_mbps=none"]
    assert len(run_names([run(policy="x" * 500), run()])[0]) <= 120


def test_what_differs_is_listed_for_the_heading():
    runs = [run(policy="lane"), run(policy="random", network_clients=5, seeds=[3])]
    assert differences(runs) == ["policy", "network.clients", "seeds"]
    assert differences([run(), run()]) == []


def test_the_shared_policy_is_named_in_the_heading():
    assert shared_policy([run(policy="lane:V=2"), run(policy="lane:V=2", seeds=[9])]) == "lane:V=2"
    assert shared_policy([run(policy="lane:V=2"), run(policy="lane:V=10")]) == "lane"
    assert shared_policy([run(policy="lane"), run(policy="random")]) == ""


def test_natural_order():
    labels = ["lane:V=10", "lane:V=2", "lane:V=0.5", "lane:V=1e3", "genie", "lane:V=100"]
    assert sorted(labels, key=natural_key) == [
        "genie",
        "lane:V=0.5",
        "lane:V=2",
        "lane:V=10",
        "lane:V=100",
        "lane:V=1e3",
    ]
    assert sorted(["10", "b", "9"], key=natural_key) == ["9", "10", "b"]


def test_seeds_in_words():
    assert [seeds_text(seeds) for seeds in ([4], [0, 1, 2], [5, 1, 9], ["a", "b"])] == [
        "seed 4",
        "seeds 0 to 2",
        "3 seeds from 1 to 9",
        "2 seeds",
    ]
