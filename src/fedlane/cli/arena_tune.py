"""The command `fedlane arena tune`: the same number of trials for every policy."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedlane.cli.arena_study import Output, chosen_policies, chosen_worlds, play, show_plan
from fedlane.cli.options import (
    CellsDryRunOption,
    Device,
    DeviceOption,
    JsonOption,
    NoLearningOption,
    QuietOption,
    RayAddressOption,
    RayOption,
    RoundsOption,
    SetOption,
    WorkersOption,
    chosen_ray,
    parsed_seeds,
)
from fedlane.cli.session import new_folder
from fedlane.validate import InputError, at_least


def tune(
    world: Annotated[
        list[str] | None,
        typer.Option("--world", metavar="W", help="World to tune on (default: five whose data are in the package)."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="P", help="Policy to tune (default: all that state ranges)."),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", metavar="K", help="Trials of each policy.")] = 20,
    rounds: RoundsOption = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="K|A:B", help="Tuning seeds (default: 4000:4004).")
    ] = None,
    set_: SetOption = None,
    device: DeviceOption = Device.cpu,
    no_learning: NoLearningOption = False,
    workers: WorkersOption = None,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    dry_run: CellsDryRunOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; one that holds an arena is continued.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tune policies with the same number of trials each, and write tuned.json with every trial.

    A policy gets one set of values for all worlds: the smallest simulated time relative to its default, among trials
    that serve the quotas. Policies that require losses are trained on the CPU; --no-learning leaves them out.
    """
    from fedlane.experiments.arena.arena_worlds import TUNING_WORLDS
    from fedlane.experiments.arena.tuned import NAME
    from fedlane.experiments.arena.tuning import TUNING_SEEDS, TuningPlan, tunable
    from fedlane.experiments.engine.study_folder import write_files
    from fedlane.experiments.sweep import make_runner
    from fedlane.scheduling.registry import make_policy, split_name

    output = Output(as_json, quiet)
    at_least("--trials", trials, 1)
    for name in policy or ():
        if split_name(name)[1]:
            raise InputError(f"--policy {name}: name a policy to tune without parameters")
        if not make_policy(name).ranges:
            raise InputError(f"policy {name} states no ranges of its parameters, so it cannot be tuned")
    runner = make_runner(workers, chosen_ray(ray, ray_address))
    names = tuple(tunable(chosen_policies(policy, output, no_learning=no_learning)))
    chosen_seeds = tuple(parsed_seeds("--seeds", seeds)) if seeds is not None else tuple(TUNING_SEEDS)
    worlds = chosen_worlds(world or TUNING_WORLDS, set_, rounds, output, learning=not no_learning)
    if device is Device.cuda:
        output.notes(["tuning trains only policies that require losses, and these on the CPU: --device has no effect"])
    plan = TuningPlan(names, worlds, chosen_seeds, trials)
    if dry_run:
        show_plan(plan.arena, out, workers or 1, output)
        return
    plan.arena.cells  # noqa: B018 - refuses invalid input before a folder is named
    folder = out or new_folder("arena-tuning")
    result = play(plan.arena, runner, folder, output)
    content = plan.content(result.table)
    write_files(folder, {NAME: (json.dumps(content, indent=1) + "\n").encode()})
    if as_json:
        print(json.dumps({"folder": str(folder), "tuned": content, "failures": result.failures}))
        return
    for name, entry in content["policies"].items():
        best = entry["trials"][entry["chosen"]]
        ratio = sum(best["time_ratio"].values()) / len(best["time_ratio"])
        values = ", ".join(f"{key}={value}" for key, value in best["parameters"].items()) or "its defaults"
        output.line(f"{name}: {values} ({ratio:.3f} of the default's time, trial {entry['chosen']})")
    output.line(f"Wrote {folder / NAME}. Use it with: fedlane arena --tuned {folder / NAME}")
