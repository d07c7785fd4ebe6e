"""Labels of the runs on one page: what differs between them, and their natural order."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fedlane.report.run_files import RunFiles

MAX_KEYS = 3
"""Maximum number of scenario keys in a label."""
MAX_PART = 120
"""Maximum number of characters of a part of a label."""
UNLABELLED = ("name", "policies", "run", "learning.target_accuracy")
"""Keys of a scenario that are not properties of its world, or have their own place in a label."""
_POLICY = re.compile(r"(.+?):([^:=]+=.*)")
"""A policy with parameters: its name, and key=value pairs."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", re.IGNORECASE)


def natural_key(text: str) -> tuple[tuple[int, float, str], ...]:
    """Return a key for sorting in which numbers count by value: V=2 comes before V=10."""
    pieces = _NUMBER.split(text.casefold())
    return tuple((1, float(piece), "") if k % 2 else (0, 0.0, piece) for k, piece in enumerate(pieces))


def seeds_text(seeds: Sequence[Any]) -> str:
    """Describe seeds: ``seed 3``, ``seeds 0 to 9`` or ``5 seeds from 1 to 40``."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if all(isinstance(seed, int) for seed in seeds) and seeds:
        consecutive = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
        span = f"{min(seeds)} to {max(seeds)}"
        return f"seeds {span}" if consecutive else f"{len(seeds)} seeds from {span}"
    return f"{len(seeds)} seeds"


def run_names(files: Sequence[RunFiles]) -> list[str]:
    """Unique labels that say what differs between the runs.

    A label names the policy, its parameters, the scenario, scenario keys, the seeds and whether it learned, each only
    where it differs; a policy that only one run has is named as the user named it. Runs that do not differ are told
    apart by their folders, and a single run has its policy's name.
    """
    labels = [", ".join(parts) for parts in _parts(files)]
    labels = [label or _short(_policy(run)) for label, run in zip(labels, files, strict=True)]
    repeated = Counter(labels)
    labels = [
        f"{label} ({run.folder})" if repeated[label] > 1 else label for label, run in zip(labels, files, strict=True)
    ]
    seen: Counter[str] = Counter()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return unique


def shared_policy(files: Sequence[RunFiles]) -> str:
    """The policy of all runs, with its parameters if these are also the same; empty if the runs' policies differ."""
    named, bare = {_policy(run) for run in files}, {_policy_name(run) for run in files}
    return next(iter(named)) if len(named) == 1 else next(iter(bare)) if len(bare) == 1 else ""


def differences(files: Sequence[RunFiles]) -> list[str]:
    """Names of what differs between the runs: ``policy``, parameters, ``scenario``, scenario keys, ``seeds``."""
    keys = {key for group in _differing(files, _policy_name, _parameters).values() for key in group}
    world = {key for group in _differing(files, _scenario, _world).values() for key in group}
    return [
        *(["policy"] if len({_policy_name(run) for run in files}) > 1 else []),
        *sorted(keys),
        *(["scenario"] if len({_scenario(run) for run in files}) > 1 else []),
        *sorted(world),
        *(["seeds"] if len({tuple(map(str, _seeds(run))) for run in files}) > 1 else []),
    ]


def scenario_digest(run: RunFiles) -> str:
    """A digest of the values of a run's scenario and of the rounds that it has played.

    Runs with the same digest differ in policy, seeds, name or target only, so that their measures can be compared.
    """
    content = json.dumps([_world(run), run.summary.get("rounds"), _learned(run)], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def scenario_differences(files: Sequence[RunFiles]) -> list[str]:
    """Keys of the scenarios that differ between any two runs, whatever the scenarios' names."""
    keys = _differing(files, lambda run: "", _world)[""]
    return [*keys, *(["rounds played"] if len({run.summary.get("rounds") for run in files}) > 1 and not keys else [])]


def _parts(files: Sequence[RunFiles]) -> list[list[str]]:
    """The parts of each run's label; empty lists if nothing differs."""
    worlds = _differing(files, _scenario, _world)
    by_scenario = len({_scenario(run) for run in files}) > 1
    by_seeds = len({tuple(map(str, _seeds(run))) for run in files}) > 1
    by_learning = len({_learned(run) for run in files}) > 1
    result = []
    for run, policy in zip(files, _policy_parts(files), strict=True):
        keys = worlds[_scenario(run)]
        named = [f"{_short_key(key, keys)}={_value(_world(run).get(key))}" for key in keys[:MAX_KEYS]]
        result.append(
            [
                *([_short(policy)] if policy else []),
                *([_short(_scenario(run))] if by_scenario else []),
                *named,
                *([f"{len(keys) - MAX_KEYS} more keys"] if len(keys) > MAX_KEYS else []),
                *([seeds_text(_seeds(run))] if by_seeds else []),
                *(["learning" if _learned(run) else "no learning"] if by_learning else []),
            ]
        )
    return result


def _policy_parts(files: Sequence[RunFiles]) -> list[str]:
    """Each run's policy and parameters as far as they differ: ``lane``, ``lane:V=2``, ``V=2`` or nothing."""
    parameters = _differing(files, _policy_name, _parameters)
    runs = Counter(map(_policy_name, files))
    result = []
    for run in files:
        name = _policy_name(run)
        values = ",".join(f"{key}={_value(_parameters(run).get(key))}" for key in parameters[name])
        if len(runs) == 1:
            result.append(values)
        else:
            result.append(f"{name}:{values}" if values else _policy(run))
    return result


def _differing(
    files: Sequence[RunFiles], group: Callable[[RunFiles], str], values: Callable[[RunFiles], Mapping[str, Any]]
) -> dict[str, list[str]]:
    """By group, the keys whose values differ between the runs of that group."""
    members: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in files:
        members[group(run)].append(values(run))
    return {
        name: [key for key in _all_keys(tables) if len({_hashable(table.get(key)) for table in tables}) > 1]
        for name, tables in members.items()
    }


def _all_keys(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for table in tables for key in table))


def _hashable(value: Any) -> Hashable:
    return repr(value)


def _policy(run: RunFiles) -> str:
    return str(run.summary.get("policy", run.folder))


def _policy_name(run: RunFiles) -> str:
    """The policy without its parameters."""
    match = _POLICY.fullmatch(_policy(run))
    return match[1] if match else _policy(run)


def _scenario(run: RunFiles) -> str:
    return str(run.summary.get("scenario", run.scenario.get("name", "")))


def _parameters(run: RunFiles) -> Mapping[str, Any]:
    """The parameters that the policy used; if they were not recorded, those in its name."""
    parameters = run.summary.get("parameters")
    if isinstance(parameters, dict) and parameters:
        return parameters
    match = _POLICY.fullmatch(_policy(run))
    return dict(pair.partition("=")[::2] for pair in match[2].split(",")) if match else {}


def _world(run: RunFiles) -> Mapping[str, Any]:
    """The values of a run's scenario by dotted key."""
    values: dict[str, Any] = {}
    for key, value in run.scenario.items():
        if key in UNLABELLED:
            continue
        table = {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
        values |= {name: item for name, item in table.items() if name not in UNLABELLED}
    return values


def _seeds(run: RunFiles) -> Sequence[Any]:
    seeds = run.summary.get("seeds")
    return seeds if isinstance(seeds, list) else []


def _learned(run: RunFiles) -> bool:
    accuracy = run.summary.get("final_accuracy")
    return isinstance(accuracy, dict) and accuracy.get("mean") is not None


def _short_key(key: str, keys: Sequence[str]) -> str:
    """The last part of a dotted key, or all of it if another differing key ends in the same part."""
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in keys) > 1 else last


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list) and len(str(value)) > 24:
        return f"[{len(value)} values]"
    return _short(
        f"{value:g}" if isinstance(value, float) else str(value).lower() if value in (True, False) else str(value)
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_PART else text[: MAX_PART - 1] + "…"
