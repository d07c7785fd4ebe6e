"""Render docs/arena.md from stored results, so that the page always agrees with them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlane.experiments.arena.arena_worlds import TARGETS, TUNING_WORLDS
from fedlane.experiments.arena.critical_difference import CriticalDifference, critical_difference
from fedlane.experiments.arena.entrants import LEAGUES
from fedlane.experiments.arena.leaderboard_tables import COLUMNS, LEAGUE_COLUMNS, league_rows, tuning_rows, world_rows
from fedlane.experiments.arena.notes import facts, notes
from fedlane.experiments.arena.pictures import ranks_chart, world_chart
from fedlane.experiments.arena.sentences import overall_sentences, world_sentences
from fedlane.experiments.arena.standings import Standing, standings
from fedlane.report.svg_charts import standalone

FOLDER = "results"
"""Folder that holds the pictures, relative to the page."""
GUIDE = f"""# The arena

`fedlane arena` runs every policy in the same worlds on the same seeds, and ranks the policies that meet the quotas.

    fedlane arena --quick                        # minutes on two cores
    fedlane arena --quick --policy lane --policy my_policy:Mine
    fedlane arena tune --workers 8 --out runs/tuning
    fedlane arena --workers 8 --tuned runs/tuning/tuned.json --out runs/arena

- **Worlds**: {", ".join(f"`{name}`" for name in TARGETS)} ([worlds](worlds.md)). A world whose data are not on the
  machine is skipped with a message. `--world my.toml` adds your own world, which may set `learning.target_accuracy`.
- **Leagues** group policies by what a policy knows:
  {"; ".join(f"in *{name}*, it {meaning}" for name, meaning in LEAGUES.items())}.
  A policy declares what it needs in `requires`. Losses are paid from the clients' privacy budget.
- **Equal tuning**: `arena tune` gives every policy 20 trials: its defaults, and 19 points of a fixed sequence
  that covers the ranges it declares. A policy gets one set of values for all worlds, chosen on seeds 4000 to 4003 of
  {", ".join(f"`{name}`" for name in TUNING_WORLDS)}; the other worlds show whether the values transfer. Each policy
  competes with its defaults and, if a trial was better (it serves the quotas in more worlds, or is faster), a second
  time with its tuned values.
- **Learning**: by default, models are trained in every cell (on a GPU with `--device cuda`). With `--no-learning`, none
  are trained; with `--quick`, only those of policies that require losses. The models of such a policy are always
  trained on the CPU, because its schedule depends on each round's losses.
- **The folder** contains `leaderboard.parquet` (one row per world, entrant and seed), `curves.parquet`,
  `leaderboard.html`, a page for the first run of each cell in `runs/`, and `cells/`, from which the same command
  continues an interrupted arena. `--workers`, `--ray`, `--dry-run` and the use of the folder are the same as for
  [sweeps](sweeps.md). An arena may continue in the folder of a different one, because cells are found by their keys.
- [Contributing](contributing.md#add-a-policy-to-the-arena) explains how to add a policy permanently.

This page is generated: `python examples/arena_page.py RUN_FOLDER NOTE.md`.
"""


def arena_page(table: pa.Table, tuned: Mapping[str, Any], note: str) -> str:
    """Return the page.

    Args:
        table: The content of ``leaderboard.parquet``.
        tuned: The content of the file of tuned values.
        note: Text that says on which machine the results were computed, and how long that took.
    """
    judged = standings(table)
    worlds = list(dict.fromkeys(standing.world for standing in judged))
    parts = [GUIDE, f"## Results\n\n{facts(table)} {note.strip()}".strip(), _list(overall_sentences(judged))]
    parts += [_league(judged, league) for league in LEAGUES]
    parts += [_world([s for s in judged if s.world == world]) for world in worlds]
    rows = tuning_rows(tuned)
    if rows:
        parts.append(f"## Tuned values\n\n{_table(('policy', 'values', 'time / default'), rows)}")
    parts.append(f"## How to read this page\n\n{_list(notes(table))}")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def write_pictures(table: pa.Table, curves: pa.Table, folder: Path) -> None:
    """Write the pictures of the page.

    Args:
        table: The content of ``leaderboard.parquet``.
        curves: The content of ``curves.parquet``.
        folder: The folder into which the pictures are written.
    """
    judged = standings(table)
    for league in LEAGUES:
        ranks = critical_difference(judged, league)
        if ranks is not None:
            (folder / f"arena-league-{league}.svg").write_text(standalone(ranks_chart(ranks)), encoding="utf-8")
    for world in dict.fromkeys(standing.world for standing in judged):
        chart = world_chart(curves, [standing for standing in judged if standing.world == world])
        (folder / f"arena-{world}.svg").write_text(standalone(chart), encoding="utf-8")


def _league(judged: Sequence[Standing], league: str) -> str:
    ranks = critical_difference(judged, league)
    rows = league_rows(judged, league, ranks)
    if not rows:
        return ""
    picture = test = ""
    if ranks is not None:
        picture = f"![Average ranks of league {league}]({FOLDER}/arena-league-{league}.svg)\n\n"
        test = f" Friedman's test over {len(ranks.worlds)} worlds gives p = {ranks.p_value:.2g}. {_inseparable(ranks)}"
    return f"### League {league}\n\nEvery entrant {LEAGUES[league]}.{test}\n\n{picture}{_table(LEAGUE_COLUMNS, rows)}"


def _inseparable(ranks: CriticalDifference) -> str:
    """Say which entrants cannot be distinguished from the one with the best average rank."""
    order = sorted(zip(ranks.ranks, ranks.labels, strict=True))
    best, difference = order[0], ranks.distance
    close = [label for rank, label in order[1:] if rank - best[0] < difference]
    text = f"Average ranks that differ by less than {difference:.2f} do not differ significantly"
    if not close:
        return f"{text}; `{best[1]}` differs significantly from all others."
    return f"{text}: `{best[1]}` cannot be distinguished from the next {len(close)}, down to `{close[-1]}`."


def _world(standings: Sequence[Standing]) -> str:
    world = standings[0].world
    rows: list[tuple[str, ...]] = []
    group = ""
    for row in world_rows(standings):
        if row.group != group:
            group = row.group
            rows.append(("", f"**{group}**", *[""] * (len(COLUMNS) - 2)))
        rows.append(row.cells)
    picture = f"![{world}]({FOLDER}/arena-{world}.svg)"
    return f"### {world}\n\n{_list(world_sentences(standings))}\n\n{picture}\n\n{_table(COLUMNS, rows)}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
