"""Command-line options that several commands share, and the values they stand for."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # imported only for annotations, to keep `fedlane --help` fast
    from fedlane.scenario import Scenario


class Device(StrEnum):
    """The device that trains the models."""

    cpu = "cpu"
    cuda = "cuda"


RoundsOption = Annotated[
    int | None, typer.Option("--rounds", metavar="T", help="Number of rounds, instead of the scenario's.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="S", help="Seed of a single run.")]
SeedsOption = Annotated[
    str | None, typer.Option("--seeds", metavar="K|A:B", help="Run seeds 0 to K-1, or seeds A to B-1, together.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario value, for example network.clients=20."),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Device that trains the models.")]
NoLearningOption = Annotated[bool, typer.Option("--no-learning/--learning", help="Compute the schedule only.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder, new or empty.")]
TargetOption = Annotated[
    float | None,
    typer.Option("--target", metavar="A", help="Report the time to reach this accuracy (saved with the run)."),
]
CheckpointOption = Annotated[int, typer.Option("--checkpoint-every", metavar="K", help="Rounds between checkpoints.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Also log to tensorboard[:DIR] or mlflow[:URI]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]

CellsDryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="List the cells and estimate the time; compute and write nothing.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Processes, or tasks of Ray at a time (default: 1).")
]
RayOption = Annotated[bool, typer.Option("--ray", help="Use the local Ray; start it if none is running.")]
RayAddressOption = Annotated[
    str | None, typer.Option("--ray-address", metavar="ADDRESS", help="Use the Ray cluster at HOST:PORT.")
]


def chosen_ray(ray: bool, address: str | None) -> bool | str:
    """Return the cluster that ``--ray`` or ``--ray-address`` selects: an address, True for the local Ray, or False."""
    if ray and address is not None:
        raise InputError("--ray and --ray-address cannot be combined")
    if address is not None and not address.strip():
        raise InputError("--ray-address is empty: give HOST:PORT")
    return ray if address is None else address


def resolved_scenario(name: str, settings: list[str] | None, rounds: int | None) -> "Scenario":
    """Load a scenario and apply ``--set`` and ``--rounds``."""
    from fedlane.scenario import Scenario

    scenario = Scenario.load(name).with_settings(settings or [])
    return scenario if rounds is None else scenario.with_values({"rounds": rounds})


def chosen_seeds(seed: int, seeds: str | None) -> Sequence[int]:
    """Return the seeds that ``--seed`` or ``--seeds`` selects."""
    if seeds is None:
        at_least("seed", seed, 0)
        return [seed]
    chosen = parsed_seeds("--seeds", seeds)
    if seed != 0:
        raise InputError("--seed and --seeds cannot be combined")
    return chosen


def parsed_seeds(option: str, text: str, largest: int | None = None) -> range:
    """Return the seeds that an option names: ``K`` for 0 to K-1, or ``A:B`` for A to B-1.

    Args:
        option: Name of the option, for error messages.
        text: The option's value.
        largest: Largest number of seeds; None for any.

    Raises:
        InputError: The value is neither of the two, or names no seed or too many.
    """
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise InputError(f"{option} must be K (seeds 0 to K-1) or A:B (seeds A to B-1), got '{text}'")
    if len(numbers) == 1:
        at_least(option, numbers[0], 1)
    first, end = numbers if len(numbers) == 2 else (0, numbers[0])
    at_least(f"the first seed of {option}", first, 0)
    if end <= first:
        raise InputError(f"{option} {text} names no seed: the second number must be greater than the first")
    if end > 2**63:
        raise InputError(f"{option} must name seeds less than 2^63, got {text}")
    if largest is not None and end - first > largest:
        raise InputError(f"{option} must name at most {largest:,} seeds, got {text}")
    return range(first, end)


def with_target_accuracy(
    scenario: "Scenario", target: float | None, settings: list[str] | None, *, no_learning: bool
) -> "Scenario":
    """Return the scenario with ``--target`` as its ``learning.target_accuracy``."""
    named = any(setting.partition("=")[0].strip() == "learning.target_accuracy" for setting in settings or [])
    if no_learning and (target is not None or named):
        option = "--target" if target is not None else "learning.target_accuracy"
        raise InputError(f"{option} cannot be combined with --no-learning: no accuracy is measured")
    if target is None:
        return scenario
    if not 0 < target <= 1:
        raise InputError(f"--target must be greater than 0 and at most 1, got {target:g}")
    return scenario.with_values({"learning.target_accuracy": target})
