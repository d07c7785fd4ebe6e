"""Forged files in the user's cache: no stranger's file lowers an epsilon."""

import json
import stat

import pytest

from fedlane import cache
from fedlane.privacy import Terms, epsilon_curve
from fedlane.privacy.accountant import check_budget
from fedlane.validate import InputError

GOOD = Terms("rigorous", 1.0, 2, 8.0, 0.0, 8.0, 1e-5, 6, 10.0)
WEAK = Terms("rigorous", 1.0, 2, 0.3, 0.0, 8.0, 1e-5, 6, 10.0)
"""Noise that spends far more than the agreed epsilon."""


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty cache, and a user without a secret."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cache._kept_key.cache_clear()
    yield tmp_path
    cache._kept_key.cache_clear()


def curve_file(folders):
    (file,) = (folders / "cache" / "fedlane" / "epsilon").iterdir()
    return file


def forged_curves(true):
    """Return curves that are lower than the true one and never decrease."""
    yield [0.0] * len(true)
    yield [true[0]] * len(true)
    yield [*true[:1] * (len(true) - 1), true[-1]]  # both ends are right
    yield [epsilon * (1 - 1e-6) for epsilon in true]
    yield [*true[:3], true[2], *true[4:]]  # one point is lower


def test_a_forged_curve_is_not_used(folders):
    true = epsilon_curve(GOOD, 6).tolist()
    stored = json.loads(curve_file(folders).read_text())
    text = json.dumps(stored["key"], sort_keys=True)
    for values in forged_curves(true):
        for digest in (cache._digest(text + repr(values)), cache._digest(text + repr(values), b"x" * 32), "", None, 7):
            curve_file(folders).write_text(json.dumps({**stored, "values": values, "digest": digest}))
            assert epsilon_curve(GOOD, 6).tolist() == true


def test_a_whole_cache_of_somebody_else_is_not_used(folders, monkeypatch):
    """Files that are sealed with another secret: those of a cache that was unpacked from an archive."""
    true = epsilon_curve(GOOD, 6).tolist()
    stored = json.loads(curve_file(folders).read_text())
    zeros = [0.0] * len(true)
    text = json.dumps(stored["key"], sort_keys=True) + repr(zeros)
    (folders / "cache" / "fedlane" / "cache.key").write_bytes(b"x" * 32)
    curve_file(folders).write_text(json.dumps({**stored, "values": zeros, "digest": cache._digest(text, b"x" * 32)}))
    assert epsilon_curve(GOOD, 6).tolist() == true


def test_terms_with_too_little_noise_stay_refused(folders):
    for _ in range(2):
        with pytest.raises(InputError, match="more than the agreed 8"):
            check_budget(WEAK)
        stored = json.loads(curve_file(folders).read_text())
        zeros = [0.0] * len(stored["values"])
        digest = cache._digest(json.dumps(stored["key"], sort_keys=True) + repr(zeros))
        curve_file(folders).write_text(json.dumps({**stored, "values": zeros, "digest": digest}))


def test_a_sealed_curve_is_used_by_the_user_who_wrote_it(folders, monkeypatch):
    curve = epsilon_curve(GOOD, 6)
    cache._kept_key.cache_clear()  # as in another process
    monkeypatch.setattr("fedlane.privacy.accountant._computed_epsilons", lambda *_: pytest.fail("computed again"))
    assert epsilon_curve(GOOD, 6).tolist() == curve.tolist()
    key = folders / "state" / "fedlane" / "cache.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [file.name for file in key.parent.iterdir()] == ["cache.key"]


@pytest.mark.parametrize("damage", ["open", "short", "folder", "file"])
def test_a_secret_that_is_none_is_not_used(folders, damage):
    key = folders / "state" / "fedlane" / "cache.key"
    true = epsilon_curve(GOOD, 6).tolist()
    if damage == "open":
        key.chmod(0o644)
    elif damage == "short":
        key.write_bytes(b"")
    else:
        key.unlink()
        if damage == "folder":
            key.mkdir()
        else:
            key.parent.rmdir()
            key.parent.write_text("")
    cache._kept_key.cache_clear()
    assert cache.seal_key() == cache._process_key()
    assert epsilon_curve(GOOD, 6).tolist() == true
