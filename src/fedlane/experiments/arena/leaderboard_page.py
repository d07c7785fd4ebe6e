"""The page of the arena: one self-contained HTML file without scripts."""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedlane import __version__
from fedlane.experiments.arena.critical_difference import critical_difference
from fedlane.experiments.arena.entrants import LEAGUES
from fedlane.experiments.arena.leaderboard_tables import COLUMNS, LEAGUE_COLUMNS, league_rows, tuning_rows, world_rows
from fedlane.experiments.arena.notes import facts, notes
from fedlane.experiments.arena.pictures import ranks_chart, world_chart
from fedlane.experiments.arena.sentences import overall_sentences, world_sentences
from fedlane.experiments.arena.standings import Standing, standings
from fedlane.report.static_page import static_page

Links = Mapping[tuple[str, str], str]
"""The page of each run, by world and entrant."""


def leaderboard_page(table: pa.Table, curves: pa.Table, tuned: Mapping[str, Any], links: Links) -> str:
    """Build the page.

    Args:
        table: The content of ``leaderboard.parquet``.
        curves: The content of ``curves.parquet``.
        tuned: The content of the file of tuned values.
        links: The page of each run, by world and entrant; entrants without one have no link.
    """
    judged = standings(table)
    worlds = list(dict.fromkeys(standing.world for standing in judged))
    navigation = " · ".join(f'<a href="#{html.escape(world)}">{html.escape(world)}</a>' for world in worlds)
    parts = [
        f"<h1>The arena</h1><p>{_text(facts(table))}</p><nav>{navigation}</nav>",
        _list(overall_sentences(judged)),
        *_leagues(judged),
        *(_world([s for s in judged if s.world == world], curves, links) for world in worlds),
        *_tuning(tuned),
        f'<section id="notes"><h2>How to read this page</h2>{_list(notes(table))}</section>',
        f"<footer>FedLane {__version__}</footer>",
    ]
    return static_page("The arena · FedLane", "\n".join(parts))


def _leagues(judged: Sequence[Standing]) -> Iterator[str]:
    for league, meaning in LEAGUES.items():
        ranks = critical_difference(judged, league)
        rows = league_rows(judged, league, ranks)
        if not rows:
            continue
        picture = "" if ranks is None else f"<figure>{ranks_chart(ranks)}</figure>"
        test = "" if ranks is None else f" Friedman's test over {len(ranks.worlds)} worlds: p = {ranks.p_value:.2g}."
        yield (
            f'<section id="league-{league}"><h2>League {league}</h2><p>Every entrant {meaning}.{test}</p>{picture}'
            f"{_table(LEAGUE_COLUMNS, [[_text(cell) for cell in row] for row in rows])}</section>"
        )


def _world(standings: Sequence[Standing], curves: pa.Table, links: Links) -> str:
    world, group, body = standings[0].world, "", []
    for row in world_rows(standings):
        if row.group != group:
            group = row.group
            body.append(f'<tr class="group"><th colspan="{len(COLUMNS)}">{_text(group)}</th></tr>')
        cells = [_text(cell) for cell in row.cells]
        link = links.get((world, row.label))
        if link is not None:
            cells[1] = f'<a href="{html.escape(link)}">{cells[1]}</a>'
        body.append(_row(cells))
    head = "".join(f"<th>{_text(column)}</th>" for column in COLUMNS)
    return (
        f'<section id="{html.escape(world)}"><h2>{_text(world)}</h2>{_list(world_sentences(standings))}'
        f"<figure>{world_chart(curves, standings)}</figure>"
        f'<div class="wide world"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        "</section>"
    )


def _tuning(tuned: Mapping[str, Any]) -> Iterator[str]:
    rows = tuning_rows(tuned)
    if rows:
        seeds = tuned["seeds"]
        about = (
            f"{tuned['trials']} trials of each policy on seeds {seeds[0]} to {seeds[-1]} of "
            f"{', '.join(tuned['worlds'])}; one set of values for all worlds. {tuned['objective']}"
        )
        table = _table(("policy", "values", "time / default's time"), [[_text(cell) for cell in row] for row in rows])
        yield f'<section id="tuning"><h2>Tuned values</h2><p>{_text(about)}</p>{table}</section>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(_row(row) for row in rows)
    return f'<div class="wide league"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _text(text: str) -> str:
    """Escape text for HTML; parts between backquotes become code."""
    pieces = html.escape(text).split("`")
    return "".join(piece if k % 2 == 0 else f"<code>{piece}</code>" for k, piece in enumerate(pieces))
