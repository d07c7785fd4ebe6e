"""The `fedlane` command: in this process, which is quick, in a forked one, or in one of its own, as a user runs it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from support.forked import Forked

COMMAND = str(Path(sys.executable).with_name("fedlane"))
"""The installed command."""
ENVIRONMENT = {"COLUMNS": "80"}
HOOKED = """
import os, signal, sys, time
from pathlib import Path
from fedlane.cli import main
from fedlane.simulation.run import Simulation

step, at = Simulation.step, int(sys.argv.pop(1))

def step_with_hook(simulation):
    if simulation.round == at:
        hook()
    step(simulation)

Simulation.step = step_with_hook
"""
HELD = f"""{HOOKED}
seen = Path(sys.argv.pop(1))

def hook():
    while not seen.exists():
        time.sleep(0.05)

main()
"""
"""A program: `fedlane`, which waits before a round until a file exists. Arguments: round, file, and the rest."""


def fedlane(*arguments, cwd, code=None, **environment):
    """Call the command's entry point in this process.

    Args:
        *arguments: The words after `fedlane`.
        cwd: Working directory.
        code: Exit code to insist on, if any.
        **environment: Additional environment variables.

    Returns:
        A `subprocess.CompletedProcess` with the exit code and the text written to stdout and stderr.
    """
    from fedlane.cli import main

    words, out, err = [str(word) for word in arguments], io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.dict(os.environ, {**ENVIRONMENT, **environment}),
            mock.patch.object(sys, "argv", ["fedlane", *words]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        result = subprocess.CompletedProcess(["fedlane", *words], end.code, out.getvalue(), err.getvalue())
    finally:
        os.chdir(before)
    assert code in (None, result.returncode), result.stderr
    return result


def fedlane_process(*arguments, cwd, code=None, **options):
    """Run the command in a process of its own; the arguments and the result are those of `fedlane`.

    ``options`` are those of `subprocess.run`; ``env`` is added to this process's environment.
    """
    environment = {**os.environ, **ENVIRONMENT, **options.pop("env", {})}
    result = subprocess.run(
        [COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, env=environment, **options
    )
    assert code in (None, result.returncode), result.stderr
    return result


def fedlane_forked(*arguments, cwd, before=lambda: None, **environment):
    """Start the command in a child that is forked from this process; ``before`` is called in the child first."""
    from fedlane.cli import main
    from fedlane.simulation import simulation  # noqa: F401  # imported here, once for all children

    def work():
        sys.argv = ["fedlane", *map(str, arguments)]
        before()
        main()

    return Forked(work, cwd=cwd, environment={**ENVIRONMENT, **environment})


def fedlane_killed(round, *arguments, cwd):
    """Run the command in a process that kills itself (SIGKILL) before it plays ``round``."""

    def before():
        from fedlane.simulation.simulation import Simulation

        step = Simulation.step

        def step_or_die(simulation):
            if simulation.round == round:
                os.kill(os.getpid(), signal.SIGKILL)
            step(simulation)

        Simulation.step = step_or_die

    return fedlane_forked(*arguments, cwd=cwd, before=before).wait()
