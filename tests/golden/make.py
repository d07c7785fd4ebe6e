"""Write digests.json and files/ again.

    python tests/golden/make.py --digests [GROUP ...]   digests.json, or only some of its groups; the files stay
    python tests/golden/make.py                         files/ and digests.json

A digest changes only in a commit that names it and the issue that permits it. Digests of floating-point numbers depend
on the processor's instructions (see records.py), so they are computed three times: as this processor computes, without
AVX-512, and without AVX as well. The learned cell of the reproduction store needs full Fashion-MNIST,
and commute-lte measured traces (FEDLANE_DATA).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1]))  # tests/support

import cases
import numpy as np
import opening
import records
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

RUN_GROUPS = (*cases.GROUPS, "episodes", "federation", "half-way", "finished", "curves", "saved-schedule")


def main() -> None:
    """Write what the arguments ask for."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--print"]:
        print(json.dumps(computed(sys.argv[2:])))
        return
    groups = [word for word in sys.argv[1:] if word != "--digests"] or list(RUN_GROUPS)
    if "--digests" not in sys.argv:
        shutil.rmtree(cases.FILES, ignore_errors=True)
        cases.FILES.mkdir()
        write_files(cases.FILES)
    made = [computed_by_another(environment, groups) for environment in environments()]
    kept = {} if groups == list(RUN_GROUPS) else records.stored()
    written = {"arithmetics": [identity for each in made for identity in each["arithmetics"]]}
    if kept and kept["arithmetics"] != written["arithmetics"]:
        raise SystemExit("digests.json comes from a machine of another arithmetic: write all of its groups")
    merged_groups = merged(made, set(written["arithmetics"]))
    written |= {group: merged_groups.get(group) or kept[group] for group in RUN_GROUPS}
    records.DIGESTS.write_text(records.text(written) + "\n")


def environments() -> list[dict[str, str]]:
    """Environment variables that make this machine compute as itself, without AVX-512, and without AVX as well."""
    here = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    wide = [name for name in here if "512" in name or name == "X86_V4"]
    without_avx512 = {"OPENBLAS_CORETYPE": "Haswell", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    without_avx = {
        "OPENBLAS_CORETYPE": "Nehalem",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
    }
    return [
        {},
        {"NPY_DISABLE_CPU_FEATURES": " ".join(wide), **without_avx512},
        {"NPY_DISABLE_CPU_FEATURES": " ".join(here), **without_avx},
    ]


def computed_by_another(environment: dict[str, str], groups: list[str]) -> dict:
    """The digests under some environment variables, with an empty cache, by a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        result = subprocess.run(
            [sys.executable, __file__, "--print", *groups],
            env={**os.environ, **environment, "XDG_CACHE_HOME": cache},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(result.stdout.splitlines()[-1])


def computed(groups: list[str]) -> dict:
    """Some groups of digests.json, for this machine's arithmetic."""
    made = {"arithmetics": [records.arithmetic(), records.arithmetic(training=True)]}
    for group in groups:
        if group in cases.GROUPS:
            runs = {name: case.run() for name, case in cases.GROUPS[group].items()}
            training = group == "losses"
            parts = {name: records.run_parts(run.tables, training=training) for name, run in runs.items()}
            made[group] = records.by_part(parts)
        elif group == "episodes":
            import episodes

            made[group] = records.by_part(episodes.episode_records())
        elif group == "federation":
            made[group] = records.by_part(federation_records())
        elif group == "half-way":
            made[group] = half_way_records()
        elif group == "finished":
            made[group] = finished_record(cases.FINISHED.run())
        elif group == "curves":
            made[group] = {name: records.curve_record(case.run()) for name, case in cases.CURVES.items()}
        else:
            made[group] = records.curve_record(cases.SAVED_SCHEDULE.run())
    return made


def federation_records() -> dict:
    """The federations when their server has crashed, and at their end."""
    from federation import POLICIES, Federation

    made = {}
    for policy in POLICIES:
        with tempfile.TemporaryDirectory() as scratch:
            federation = Federation(Path(scratch) / "state", policy)
            federation.crash()
            made[f"{policy} crashed"] = federation.record()
            federation.serve()
            made[f"{policy} ended"] = federation.record()
    return made


def half_way_records() -> dict:
    """A run that was interrupted half-way, and the same run without interruption."""
    from fedlane import Run

    with tempfile.TemporaryDirectory() as scratch:
        opening.interrupted_run(cases.HALF_WAY, cases.PLAYED, Path(scratch) / "out")
        interrupted, ended = Run.load(Path(scratch) / "out"), cases.HALF_WAY.run()
    runs = {"interrupted": interrupted, "ended": ended}
    made = {name: finished_record(run) for name, run in runs.items()}
    return {key: {name: record[key] for name, record in made.items()} for key in ("parts", "curves")}


def finished_record(run: object) -> dict:
    """Tables, ledger, curves and table layout of a run that learns."""
    ledger = records.part(np.frombuffer(run.ledger.encode(), np.uint8))
    return {
        "parts": {**records.run_parts(run.tables), "ledger": ledger},
        "curves": records.curve_record(run),
        "layout": records.layout(run),
    }


def merged(made: list, known: set[str]):
    """The same digests of several arithmetics as one; `ALL` replaces them where all agree.

    What is compared with a tolerance (curves, sums) is that of the first arithmetic.
    """
    first = made[0]
    if not isinstance(first, dict):
        return first
    digests = {key: value for each in made for key, value in each.items() if key in known}
    if not digests:
        return {key: merged([each[key] for each in made], known) for key in first if key != "arithmetics"}
    agreed = {records.ALL: next(iter(digests.values()))} if len(set(digests.values())) == 1 else digests
    return {**agreed, **({records.SUM: first[records.SUM]} if records.SUM in first else {})}


def write_files(folder: Path) -> None:
    """Write one of each kind of file."""
    from federation import Federation

    check(opening.run_command(cases.FINISHED, folder / "run-folder"))
    opening.interrupted_run(cases.HALF_WAY, cases.PLAYED, folder / "half-way")
    (folder / "client").mkdir()
    opening.create_client_ledger(folder / "client" / "ledger")
    check(opening.run_command(cases.SAVED_SCHEDULE, folder / "out", "--save-schedule", "schedule.npz"))
    shutil.rmtree(folder / "out")
    Federation(folder / "server-state", "lane").crash()
    (folder / "server-state" / ".lock").unlink()
    check(opening.command(*reproduce(folder / "reproduction")))
    shutil.rmtree(folder / "reproduction" / "quick" / "figures")
    store, cell = opening.reproduction(folder / "reproduction")
    store.learn([(cell, 0)])


def reproduce(folder: Path) -> tuple[object, ...]:
    """The command whose store is kept: schedules of three cells, two seeds each."""
    seeds = "--seeds", 1, "--delay-seeds", 2
    return "reproduce", "fig-queues", "--quick", "--task", "fashion-mnist", *seeds, "--quiet", "--out", folder


def check(status: int) -> None:
    """Refuse the exit status of a command that failed."""
    if status:
        raise SystemExit(f"a command failed with status {status}")


if __name__ == "__main__":
    main()
