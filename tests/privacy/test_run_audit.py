"""The audit of a run: it attacks what the run did, and states what the attack could have refuted."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedlane import Scenario, simulate
from fedlane.learning.adversary import strict_sum
from fedlane.privacy import account, make_mechanism
from fedlane.privacy.audit_statistics import audit_scores, largest_bound
from fedlane.privacy.run_ledger import RunLedger
from fedlane.simulation.audit import audit
from fedlane.simulation.clipping_audit import audit_clipping
from fedlane.simulation.run_audit import audit_target, run_targets
from fedlane.validate import InputError

pytestmark = pytest.mark.slow

SETTINGS = {
    "sampled": [],
    "whole": ["learning.batch_size=800", "privacy.max_uploads=10"],
    "paper": ["privacy.mechanism=paper", "privacy.epsilon=0.8", "privacy.delta=1e-3", "learning.batch_size=10"],
    "none": ["privacy.mechanism=none"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Run folders of ten rounds, by mechanism: Poisson samples, all records in every step, paper and none."""
    root = tmp_path_factory.mktemp("runs")
    for name, settings in SETTINGS.items():
        simulate(Scenario.load("quickstart").with_settings(settings), rounds=10, learning=False).save(root / name)
    return root


def only_target(folder, trials):
    _, (target,) = run_targets(folder, trials=trials)
    return target


def test_the_attack_has_the_run_s_rate_noise_and_steps(folders):
    target = only_target(folders / "sampled", 400)
    header, *rounds = (json.loads(line) for line in (folders / "sampled" / "ledger.jsonl").read_text().splitlines())
    (terms,) = header["terms"]
    pairs = [tuple(pair) for line in rounds for pair in line["uploads"]]
    assert target.uploads == max(pairs.count(pair) for pair in pairs) > 0
    assert (target.clients, target.batch_size) == (10, 64)
    assert np.all(target.spec.step_noise == terms["step_noise"])
    assert terms["sample_rate"] == 64 / 800
    assert np.all(target.spec.sample_rate == 64 / 800)
    assert (target.spec.local_iterations, target.spec.sampling) == (5, "poisson")
    assert target.plan.batch_size / target.plan.records == pytest.approx(64 / 800)
    assert target.plan.epsilon == pytest.approx(account(terms["step_noise"], 64 / 800, 5, 1e-5), rel=1e-3)
    assert target.plan.epsilon < target.accounted < terms["epsilon"]


def test_an_attack_that_would_have_refuted_half_the_noise_says_so(folders):
    found = audit_target(only_target(folders / "whole", 2000))
    assert not found.refuted
    assert found.refutes_half_noise
    assert found.half_noise.epsilon_low > found.result.claim > found.result.epsilon_low
    assert found.result.epsilon_low_gaussian is not None


def test_an_attack_that_would_not_have_refuted_half_the_noise_says_so(folders):
    found = audit_target(only_target(folders / "sampled", 1000))
    assert not found.refuted
    assert not found.refutes_half_noise
    assert found.largest > found.result.claim


def test_an_attack_on_samples_refutes_a_tenth_of_the_noise(folders):
    """At q = 0.08. With copies of a real image instead of black ones, the size of the sample blurs the attack."""
    target = only_target(folders / "sampled", 3000)
    weaker = replace(target.spec, step_noise=target.spec.step_noise / 10)
    blank, copies = (audit(replace(target.plan, blank_records=value), weaker) for value in (True, False))
    assert blank.flagged
    assert blank.epsilon_low > copies.epsilon_low + 0.5


def test_the_paper_s_run_is_refuted(folders):
    target = only_target(folders / "paper", 6000)
    found = audit_target(target)
    assert (found.result.claim, target.spec.sampling) == (0.8, "fixed")
    assert found.refuted
    assert found.half_noise is None
    assert found.samples is None


@pytest.mark.parametrize("gaussian", [True, False])
def test_no_attack_shows_more_than_the_largest_bound(gaussian):
    """A perfect attack shows nearly that."""
    values = {"delta": 1e-5, "confidence": 0.999, "gaussian": gaussian}
    rng = np.random.default_rng(0)
    for shift in (1.0, 3.0, 1e3):
        low, high = rng.standard_normal((1000, 1)), rng.standard_normal((1000, 1)) + shift
        result = audit_scores(low, high, np.ones(1), claim=1.0, **values)
        assert result.epsilon_low <= largest_bound(2000, **values) + 1e-9
    assert result.epsilon_low == pytest.approx(largest_bound(2000, **values), rel=0.01)  # one miss, by the threshold
    assert largest_bound(400, **values) < largest_bound(20_000, **values)


def test_the_most_exposed_kinds_are_attacked(tmp_path):
    """Five kinds of clients with noise 1, 2, ... 5, of which the first made no upload."""
    epsilon = [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    values = {"network.clients": 5, "privacy.mechanism": "paper", "privacy.epsilon": epsilon, "rounds": 3}
    scenario = Scenario.load("quickstart").with_values(values)
    (tmp_path / "scenario.toml").write_text(scenario.to_toml())
    sizes = np.full((1, 5), 1600)
    spec = make_mechanism(
        "paper",
        np.array(epsilon),
        scenario.per_client(1e-5),
        sizes,
        clip_norm=1.0,
        batch_size=np.full(5, 64),
        local_iterations=5,
        max_uploads=scenario.max_uploads,
    )
    ledger = RunLedger(spec, "fashion-mnist-mini", [0])
    for round in range(3):
        ledger.charge(round, np.array([[False, round == 0, True, True, True]]))
    ledger.attach_file(tmp_path)
    _, targets = run_targets(tmp_path, trials=400)
    # Exposure is sqrt(uploads) over the noise, here in multiples of the smallest: 1 / 2, sqrt(3) / 3, sqrt(3) / 4.
    assert [(target.uploads, target.plan.epsilon) for target in targets] == [(3, 1 / 3), (1, 1 / 2), (3, 1 / 4)]
    assert all(target.clients == 1 for target in targets)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "has the mechanism 'none', which makes no privacy claim"),
        ("nowhere", "does not exist"),
        (".", "is not a run folder: scenario.toml is missing"),
    ],
)
def test_other_folders_are_refused(folders, name, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run_targets(folders / name, trials=400)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("scenario.toml", "epsilon = 8.0", "epsilon = 9.0", "the terms of client 0 differ"),
        ("scenario.toml", "clients = 10", "clients = 9", "the number of clients differs"),
        ("ledger.jsonl", '"step_noise": 1', '"step_noise": 2', "ledger .* is damaged"),
        ("ledger.jsonl", None, None, "has no ledger: only simulated runs can be audited"),
    ],
)
def test_a_run_whose_files_disagree_is_refused(folders, tmp_path, file, old, new, message):
    for source in (folders / "sampled").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    if old is None:
        (tmp_path / file).unlink()
    else:
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        run_targets(tmp_path, trials=400)


def test_a_run_without_uploads_is_refused(folders, tmp_path):
    for source in (folders / "sampled").iterdir():
        if source.name != "clients.parquet":  # which counts the uploads
            (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "ledger.jsonl").write_text((tmp_path / "ledger.jsonl").read_text().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="has made an upload"):
        run_targets(tmp_path, trials=400)


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_the_search_for_hostile_weights_is_part_of_the_audit(model):
    result = audit_clipping(model)
    assert not result.flagged
    assert 0.9 < result.real <= 1.0
    assert 0.9 < result.simulated <= result.simulated_limit < 1.001
    assert result.tried >= 34


def test_clipping_that_fails_is_flagged():
    """Sums of gradients that are clipped to 1.01 C."""

    def loose_sum(model, weights, x, targets, clip_norm):
        return strict_sum(model, weights, x, targets, 1.01 * clip_norm)

    assert audit_clipping("softmax", strict=loose_sum).flagged
    assert audit_clipping("softmax", batched=loose_sum).flagged
