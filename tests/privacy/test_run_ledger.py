"""The ledger of a simulated run: what it charges, repeated rounds, and damage."""

import numpy as np
import pytest

from fedlane.privacy import Terms, make_mechanism
from fedlane.privacy.run_ledger import NAME, RunLedger, read_run_accounts
from fedlane.validate import InputError


def spec(epsilon=0.8):
    return make_mechanism(
        "paper",
        np.array([epsilon, 5.0, 5.0]),
        np.full(3, 1e-3),
        np.array([[100, 100, 100], [90, 110, 100]]),
        clip_norm=1.0,
        batch_size=np.full(3, 10),
        local_iterations=2,
        max_uploads=np.full(3, 9),
    )


ROUNDS = np.random.default_rng(0).random((5, 2, 3)) < 0.5


def charged(folder, rounds, **changes):
    ledger = RunLedger(spec(**changes), "images", [3, 8])
    ledger.attach_file(folder)
    for round in rounds:
        ledger.charge(round, ROUNDS[round])
    return ledger


def test_charged_uploads_are_read_back(tmp_path):
    ledger = charged(tmp_path, range(5))
    accounts = read_run_accounts(tmp_path / NAME)
    np.testing.assert_array_equal(accounts.uploads, ROUNDS.sum(axis=0))
    assert (accounts.dataset, accounts.seeds) == ("images", (3, 8))
    assert [[accounts.terms[kind].epsilon for kind in row] for row in accounts.kind] == [[0.8, 5.0, 5.0]] * 2
    assert len(accounts.terms) == 4
    assert (tmp_path / NAME).read_text() == ledger.text()


def test_a_round_repeated_after_a_crash_is_not_charged_again(tmp_path):
    """The process dies after five rounds with an incomplete last line, and starts again from round 0."""
    charged(tmp_path, range(5))
    file = tmp_path / NAME
    file.write_text(file.read_text()[:-30])
    charged(tmp_path, range(5))
    np.testing.assert_array_equal(read_run_accounts(file).uploads, ROUNDS.sum(axis=0))


def test_the_ledger_of_another_run_is_refused(tmp_path):
    ledger = charged(tmp_path, range(3))
    with pytest.raises(InputError, match="belongs to another run"):
        charged(tmp_path, range(3), epsilon=0.9)
    other = RunLedger(spec(), "images", [3, 8])
    other.charge(0, ~ROUNDS[0])
    with pytest.raises(InputError, match="does not match the run's checkpoint"):
        other.attach_file(tmp_path)
    with pytest.raises(InputError, match="round 1 was charged to different clients before"):
        ledger.charge(1, ~ROUNDS[1])
    with pytest.raises(ValueError, match="round 4 cannot be charged before round 3"):
        ledger.charge(4, ROUNDS[4])


def test_damage_is_detected(tmp_path):
    charged(tmp_path, range(5))
    file = tmp_path / NAME
    lines = file.read_text().splitlines(keepends=True)
    for wrong in (
        [lines[0], *lines[2:]],
        [*lines[:3], lines[3].replace("[", "[ ", 1), *lines[4:]],
        [*lines[:2], "{}\n", *lines[3:]],
        [],
    ):
        file.write_text("".join(wrong))
        with pytest.raises(InputError, match=r"is damaged at line|is empty"):
            read_run_accounts(file)
        if wrong:
            with pytest.raises(InputError, match="is damaged at line"):
                charged(tmp_path, range(5))


def test_terms_that_accounting_cannot_compute_are_one_line(tmp_path):
    """A consistent ledger, with correct digests, whose header has numbers that overflow."""
    from fedlane.privacy.run_ledger import _line

    good = {
        "kind": "run",
        "dataset": "x",
        "seeds": [0],
        "randomness": "seeded streams of a simulation",
        "terms": [Terms("rigorous", 0.1, 5, 1.0, 0.0, 8.0, 1e-5, 10, 0.0).values()],
        "clients": [[0]],
    }
    path = tmp_path / "ledger.jsonl"
    for name in ("step_noise", "upload_noise", "histogram_noise", "sample_rate", "epsilon", "delta"):
        for number in (1e308, 2**70, 10**400, 1e-308, -1, "x", None, []):
            if name == "epsilon" and number in (1e308, 2**70, 1e-308):
                continue  # only a claim
            if name in ("sample_rate", "delta") and number == 1e-308:
                continue
            header = {**good, "terms": [{**good["terms"][0], name: number}]}
            path.write_text(_line(header, "")[0])
            with pytest.raises(InputError):
                read_run_accounts(path)
    path.write_text(_line({**good, "dataset": "a" * 100_000}, "")[0])
    with pytest.raises(InputError, match="more than 4096 characters"):
        read_run_accounts(path)
    path.write_text(_line(good, "")[0])
    assert read_run_accounts(path).dataset == "x"


def test_rounds_that_the_checkpoint_lacks_stay_charged_until_they_are_played_again(tmp_path):
    """The process dies after five rounds, starts again from a checkpoint after two, and dies again at once."""
    charged(tmp_path, range(5))
    resumed = RunLedger(spec(), "images", [3, 8])
    for round in range(2):
        resumed.charge(round, ROUNDS[round])
    resumed.attach_file(tmp_path)
    np.testing.assert_array_equal(read_run_accounts(tmp_path / NAME).uploads, ROUNDS.sum(axis=0))
    with pytest.raises(InputError, match="round 3 was charged to different clients before"):
        resumed.charge(3, ~ROUNDS[3])
