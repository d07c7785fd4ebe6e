"""The arena's page: ties, names of users, and pictures."""

from fedlane.experiments.arena.docs_page import arena_page, write_pictures
from fedlane.experiments.arena.leaderboard_page import leaderboard_page
from fedlane.experiments.arena.sentences import overall_sentences, world_sentences
from fedlane.experiments.arena.standings import standings
from support.arena_tables import curves, entrant, leaderboard, noisy


def example():
    """Two worlds: `lane` wins the first and loses the second, where another policy starves clients."""
    return leaderboard(
        entrant("lane", noisy(10, seed=1), world="u"),
        entrant("random", noisy(20, seed=2), world="u"),
        entrant("genie", noisy(8, seed=3), world="u", league="yardstick"),
        entrant("lane", noisy(30, seed=4), world="v"),
        entrant("random", noisy(20, seed=5), world="v"),
        entrant("fast<b>", noisy(2, seed=6), world="v", shortfall=0.4),
    )


def test_entrants_that_always_wait_until_the_deadline_are_called_equally_fast():
    table = leaderboard(
        entrant("a", [300.0] * 6, world="u", targets=[60.0] * 6),
        entrant("b", [300.0] * 6, world="u", targets=[90.0] * 6),
        entrant("c", noisy(310, seed=1), world="u", targets=[60.0] * 6),
    )
    judged = standings(table)
    text = "\n".join(world_sentences(judged))
    assert "League delays: `a` and `b` are equally fast (300 s)." in text
    assert "takes 0.0% longer" not in text
    assert "Every run of 2 of the 3 entrants of league delays takes the same 300 s" in text
    overall = "\n".join(overall_sentences(judged))
    tie = "first place goes to no entrant alone; several entrants share it in u."
    assert f"League delays, simulated time: {tie}" in overall
    assert f"time to the target accuracy: {tie}" in overall


def test_names_from_users_cannot_break_the_page():
    table = example()
    page = leaderboard_page(table, curves(table), {}, {("u", "lane"): "runs/a.html"})
    assert "fast<b>" not in page
    assert "fast&lt;b&gt;" in page
    assert '<a href="runs/a.html">lane</a>' in page
    assert "not the final seeds" in page


def test_pictures_and_page_are_written_together(tmp_path):
    table = example()
    write_pictures(table, curves(table), tmp_path)
    page = arena_page(table, {}, "Computed on a laptop.")
    for name in ("arena-u.svg", "arena-v.svg"):
        assert (tmp_path / name).read_text().startswith("<svg")
        assert f"results/{name}" in page
    assert "Computed on a laptop." in page
