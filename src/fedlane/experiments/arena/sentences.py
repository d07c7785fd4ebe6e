"""Sentences, generated from the numbers, about which entrant wins in which world."""

from collections.abc import Sequence

import numpy as np

from fedlane.experiments.arena.entrants import LEAGUES
from fedlane.experiments.arena.leaderboard_tables import longer
from fedlane.experiments.arena.standings import Standing
from fedlane.number_text import number_text

OURS = "lane"


def world_sentences(standings: Sequence[Standing]) -> list[str]:
    """Say for one world which entrant of each league is the fastest, by how much, and how many uploads are late."""
    lines = []
    for league in LEAGUES:
        members = [standing for standing in standings if standing.league == league]
        serving = [standing for standing in members if standing.rank is not None]
        if serving:
            lines.append(_winner(serving, league))
            lines += _always_as_long(members, league)
        failing = [standing.label for standing in members if not standing.meets]
        if failing:
            lines.append(f"Entrants of league {league} that do not meet the quotas: {_listed(failing)}.")
    ours = [standing for standing in standings if standing.policy == OURS]
    lines += [line for standing in ours if (line := _ours(standing, standings))]
    return lines


def overall_sentences(standings: Sequence[Standing]) -> list[str]:
    """Say for each league who wins in how many worlds, and where `lane` does not win."""
    lines = []
    for league in LEAGUES:
        members = [standing for standing in standings if standing.league == league]
        for measure, meaning in (("rank", "simulated time"), ("target_rank", "time to the target accuracy")):
            texts, ties = _first_places(members, measure)
            if texts or ties:
                tied = f"; several entrants share it in {_listed(ties)}" if ties else ""
                first = "; ".join(texts) or "no entrant alone"
                lines.append(f"League {league}, {meaning}: first place goes to {first}{tied}.")
    worlds = list(dict.fromkeys(standing.world for standing in standings))
    ours = [standing for standing in standings if standing.policy == OURS]
    lost = [world for world in worlds if not any(s.world == world and s.rank == 1 for s in ours)]
    if ours:
        won = len(worlds) - len(lost)
        where = f"; neither form wins in {_listed(lost)}" if lost else ""
        lines.append(
            f"By simulated time, `{OURS}` in its default or its tuned form is first in its league in {won} of "
            f"{len(worlds)} worlds{where}."
        )
        lines += _beaten(ours, standings)
        lines += [
            f"Ranks of `{label}` in its league by simulated time (by time to target): {text}."
            for label, text in _ranks_of(ours).items()
        ]
    return lines


def _first_places(members: Sequence[Standing], measure: str) -> tuple[list[str], list[str]]:
    """Return the winners with their worlds, the most frequent winner first, and the worlds with several winners."""
    first: dict[str, list[str]] = {}
    for standing in members:
        if standing.meets and getattr(standing, measure) == 1:
            first.setdefault(standing.world, []).append(standing.label)
    winners: dict[str, list[str]] = {}
    for world, labels in first.items():
        if len(labels) == 1:
            winners.setdefault(labels[0], []).append(world)
    order = sorted(winners, key=lambda label: -len(winners[label]))
    ties = [world for world, labels in first.items() if len(labels) > 1]
    return [f"`{label}` in {_listed(winners[label])}" for label in order], ties


def _ranks_of(ours: Sequence[Standing]) -> dict[str, str]:
    """Return for each form of our policy its ranks by simulated time and by time to target, world by world."""
    texts: dict[str, list[str]] = {}
    for standing in ours:
        ranks = "unranked because it does not meet the quotas"
        if standing.rank is not None:
            ranks = str(standing.rank)
            if standing.target_rank is not None:
                ranks += f" ({standing.target_rank})"
        texts.setdefault(standing.label, []).append(f"{standing.world} {ranks}")
    return {label: ", ".join(parts) for label, parts in texts.items()}


def _always_as_long(members: Sequence[Standing], league: str) -> list[str]:
    """Say how many entrants take the same time in every run, because all their rounds last until the deadline."""
    same: dict[float, list[str]] = {}
    for standing in members:
        times = standing.values["simulated_time_s"]
        if len(times) > 1 and np.ptp(times) <= 1e-9 * abs(times[0]):
            same.setdefault(round(float(times[0]), 6), []).append(standing.label)
    return [
        f"Every run of {len(labels)} of the {len(members)} entrants of league {league} takes the same "
        f"{number_text(time_s, '{:.0f}')} s: all their rounds last until the deadline, so time cannot rank them."
        for time_s, labels in same.items()
        if len(labels) > 1
    ]


def _beaten(ours: Sequence[Standing], standings: Sequence[Standing]) -> list[str]:
    """Say where another entrant of the league is significantly faster than every form of our policy."""
    lines = []
    for world in dict.fromkeys(standing.world for standing in ours):
        mine = [standing for standing in ours if standing.world == world]
        ranked = [standing for standing in mine if standing.difference is not None]
        if any(standing.rank == 1 for standing in mine) or not ranked:
            continue
        best = min(ranked, key=lambda standing: standing.rank or 0)
        winner = next(s for s in standings if s.world == world and s.league == best.league and s.rank == 1)
        if best.difference is not None and best.difference.decided:
            excess = longer(best.difference.mean)
            lines.append(f"In {world}, `{best.label}` takes {excess} than `{winner.label}` (significant).")
    return lines


def _winner(serving: Sequence[Standing], league: str) -> str:
    first = serving[0]
    time_s = number_text(first.mean("simulated_time_s"), "{:.0f}")
    text = f"League {league}: `{first.label}` is the fastest entrant that meets the quotas ({time_s} s)"
    if len(serving) > 1 and serving[1].difference is not None:
        second = serving[1].difference
        tied = [standing.label for standing in serving[1:] if standing.rank == 1]
        sure = "significant" if second.decided else "not significant"
        if tied:
            text = f"League {league}: {_listed([f'`{label}`' for label in (first.label, *tied)])} are equally fast"
            text += f" ({time_s} s)"
        else:
            text += f"; the next, `{serving[1].label}`, takes {longer(second.mean)} ({sure})"
    late = first.mean("late_share")
    others = [standing.mean("late_share") for standing in serving[1:]]
    if others and serving[1].rank != 1:
        shares = (number_text(late, "{:.1%}"), number_text(float(np.median(others)), "{:.1%}"))
        text += f". Of the uploads of `{first.label}`, {shares[0]} are late; the median of the others is {shares[1]}"
    return f"{text}."


def _ours(standing: Standing, standings: Sequence[Standing]) -> str:
    """Say by how much our policy is slower than the fastest of its league; return no text if it is the fastest."""
    if standing.meets is False:
        return f"`{standing.label}` does not meet the quotas here."
    if standing.difference is None:
        return ""
    winner = next(s for s in standings if s.league == standing.league and s.rank == 1)
    sure = "" if standing.difference.decided else " (not significant)"
    return (
        f"`{standing.label}` has rank {standing.rank} and takes {longer(standing.difference.mean)} than "
        f"`{winner.label}`{sure}."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
