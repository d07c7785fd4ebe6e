"""`fedlane reproduce`: figures from results that are kept, and what is exported for another machine."""

import pyarrow.parquet as pq
import pytest

from support.terminal import fedlane

pytestmark = pytest.mark.slow


def test_figures_are_drawn_from_cells_that_are_kept(tmp_path):
    """Figures that need no learning; a second call computes nothing and draws the same numbers."""
    command = ("reproduce", "fig-queues", "--delay-seeds", "2", "--seeds", "1", "--out", "r")
    assert "Drew r/figures/fig-queues.png" in fedlane(*command, cwd=tmp_path, code=0).stdout
    for suffix in ("png", "pdf", "parquet"):
        assert (tmp_path / "r" / "figures" / f"fig-queues.{suffix}").stat().st_size > 1000
    numbers = pq.read_table(tmp_path / "r" / "figures" / "fig-queues.parquet")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / "schedule-500").rglob("*.npz")}
    assert len(kept) == 6
    fedlane(*command, cwd=tmp_path, code=0)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert pq.read_table(tmp_path / "r" / "figures" / "fig-queues.parquet").equals(numbers)
    assert numbers.column_names == ["panel", "line", "x", "mean", "low", "high", "seeds"]
    assert set(numbers["line"].to_pylist()) == {"OM V=10, slack 0.125", "OM V=10, slack 0.125, success", "lane"}


def test_what_is_to_be_learned_is_exported(tmp_path):
    command = ("reproduce", "fig-private", "--task", "fashion-mnist", "--delay-seeds", "1", "--seeds", "1")
    exported = fedlane(*command, "--out", "r", "--export", "pieces", cwd=tmp_path, code=0)
    assert "Wrote 2 pieces to pieces" in exported.stdout
    assert sorted(path.name for path in (tmp_path / "pieces").glob("*.npz")) == ["piece-00.npz", "piece-01.npz"]
