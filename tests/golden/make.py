"""Write digests.json and files/ again: python tests/golden/make.py

A digest changes only in a commit that names it and the issue that permits it.

`python tests/golden/make.py --digests` writes digests.json only and keeps the files, which were written by the code of
their time and must stay readable. The exact digests of floating-point numbers depend on the processor's instructions
(see cases.py), so the schedules are computed twice where the processor has AVX-512, the second time without it.
Full Fashion-MNIST is needed for the learned cell of the reproduction store.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cases
import opening
import torch

WITHOUT_AVX512 = "X86_V4 AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
SERVER_ROUNDS = 5, 9
"""Rounds that the stored Flower server played, and rounds after which it ends."""


def main() -> None:
    """Write what the arguments ask for."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--print"]:
        with opening.noise_of_the_time():
            print(json.dumps(digests(Path(sys.argv[2]))))
        return
    if sys.argv[1:] != ["--digests"]:
        shutil.rmtree(cases.FILES, ignore_errors=True)
        cases.FILES.mkdir()
        write_files(cases.FILES)
    made = computed({})
    joined(made, computed({"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512, "OPENBLAS_CORETYPE": "Haswell"}))
    cases.DIGESTS.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


def computed(environment: dict[str, str]) -> dict:
    """The digests under some environment variables, with empty caches, by a process of its own."""
    scratch = Path(os.environ.get("TMPDIR", "/tmp")) / f"fedlane-golden-{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        result = subprocess.run(
            [sys.executable, __file__, "--print", str(scratch)],
            env={**os.environ, **environment, "XDG_CACHE_HOME": str(scratch / "cache")},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        shutil.rmtree(scratch)
    return json.loads(result.stdout.splitlines()[-1])


def joined(first: dict, second: dict) -> None:
    """Add the digests of the second arithmetic to the first."""
    for key, value in second.items():
        if key in ("choices", "numbers", "state", "orders", "ledger"):
            first[key].update(value)
        elif isinstance(value, dict) and key not in ("sums", "curves"):
            joined(first[key], value)


def digests(scratch: Path) -> dict:
    """Everything that digests.json holds, for this machine's arithmetic."""
    server = opening.Server(scratch / "server", SERVER_ROUNDS[1])
    while server.round < SERVER_ROUNDS[1]:
        server.play()
    saved_schedule = cases.SAVED_SCHEDULE.run(learning=True)
    return {
        "schedules": {name: cases.schedule_records(case) for name, case in cases.SCHEDULES.items()},
        "curves": {name: cases.curve_record(case.run(learning=True)) for name, case in cases.CURVES.items()},
        "finished": cases.run_record(cases.FINISHED.run(learning=True)),
        "half-way": cases.run_record(cases.HALF_WAY.run(learning=True)),
        "saved-schedule": {"curves": cases.curve_record(saved_schedule)},
        "server": opening.server_record(scratch / "server"),
    }


def write_files(folder: Path) -> None:
    """Write one of each kind of file."""
    case = cases.FINISHED
    case.run(learning=True).save(folder / "run-folder")
    opening.interrupt(cases.played(cases.HALF_WAY, cases.PLAYED), folder / "half-way")
    (folder / "client").mkdir()
    opening.create_client_ledger(folder / "client" / "ledger")
    case = cases.SAVED_SCHEDULE
    scenario = folder / "scenario.toml"
    scenario.write_text(case.scenario.to_toml())
    options = ("--policy", case.policy, "--seeds", len(case.seeds), "--no-learning", "--quiet")
    command("run", scenario, *options, "--out", folder / "out", "--save-schedule", folder / "schedule.npz")
    shutil.rmtree(folder / "out")
    scenario.unlink()
    server = opening.Server(folder / "server-state", SERVER_ROUNDS[1])
    for _ in range(SERVER_ROUNDS[0]):
        server.play()
    command(*reproduce(folder / "reproduction"))
    shutil.rmtree(folder / "reproduction" / "quick" / "figures")
    store, cell = opening.reproduction(folder / "reproduction")
    store.learn([(cell, 0)])


def reproduce(folder: Path) -> tuple[object, ...]:
    """The command whose store is kept: schedules of three cells, two seeds each."""
    seeds = "--seeds", 1, "--delay-seeds", 2
    return "reproduce", "fig-queues", "--quick", "--task", "fashion-mnist", *seeds, "--quiet", "--out", folder


def command(*arguments: object) -> None:
    """Run a command that must succeed."""
    if opening.command(*arguments):
        raise SystemExit(f"fedlane {' '.join(map(str, arguments))} failed")


if __name__ == "__main__":
    main()
