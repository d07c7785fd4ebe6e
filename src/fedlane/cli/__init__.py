"""The `fedlane` program: its entry point and its commands, which the modules of this package define."""

import contextlib
import sys
from typing import Annotated

import click
import typer

from fedlane import __version__
from fedlane.cli import arena as arena_commands
from fedlane.cli import privacy as privacy_commands
from fedlane.cli.artifact import artifact
from fedlane.cli.bench import bench
from fedlane.cli.city import city
from fedlane.cli.help import dedupe_suggestion, examples, explain_arguments
from fedlane.cli.list import list_
from fedlane.cli.merge import merge
from fedlane.cli.plot import plot
from fedlane.cli.replay import replay
from fedlane.cli.report import report, watch
from fedlane.cli.reproduce import reproduce
from fedlane.cli.run import compare, run
from fedlane.cli.session import InterruptedRunError, messages, screen
from fedlane.cli.show import show
from fedlane.cli.streams import (
    accept_all_characters,
    discard_failed_output,
    flush_output,
    notes_for_warnings,
    output_error,
)
from fedlane.cli.sweep import sweep
from fedlane.cli.testbed import run_testbed
from fedlane.validate import InputError, printable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Federated learning over wireless channels, fast and private.",
    epilog=examples(
        "fedlane run",
        "fedlane compare paper-fmnist --policy lane --policy random --seeds 20",
        "fedlane run --help",
    ),
)


def _version(value: bool) -> None:
    if value:
        screen.print(f"fedlane {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# `fedlane --help` lists the commands in this order.
app.command(
    epilog=examples(
        "fedlane run",
        "fedlane run paper-fmnist --policy mamab-om:V=10 --seeds 5 --no-learning",
        "fedlane run --set network.clients=20 --set privacy.epsilon=4 --out runs/mine",
        "fedlane run --resume runs/mine",
    )
)(run)
app.command(
    epilog=examples(
        "fedlane compare paper-fmnist --policy lane --policy random --seeds 20",
        "fedlane compare quickstart --policy lane --policy mamab-om --target 0.7",
    )
)(compare)
app.command(
    epilog=examples(
        "fedlane sweep quickstart --grid network.channels=2,4,6 --policy lane --policy random --seeds 10",
        "fedlane sweep quickstart --grid policies.lane.V=1,5,25 --no-learning --workers 4 --out runs/v",
    )
)(sweep)
app.command(epilog=examples("fedlane show quickstart", "fedlane show runs/mine", "fedlane show runs/compared"))(show)
app.command("list", epilog=examples("fedlane list policies", "fedlane list keys --json"))(list_)
app.command(epilog=examples("fedlane reproduce --quick", "fedlane reproduce fig-v fig-delay --seeds 5"))(reproduce)
app.command(epilog=examples("fedlane report runs/mine", "fedlane report runs/a runs/b --out page.html"))(report)
app.command(
    epilog=examples(
        "fedlane plot runs/mine --out accuracy.pdf",
        "fedlane plot runs/a runs/b --x privacy.epsilon --y final_accuracy --out eps.pdf",
    )
)(plot)
app.command(epilog=examples("fedlane watch runs/mine"))(watch)
app.command(epilog=examples("fedlane replay runs/mine"))(replay)
app.command(epilog=examples("fedlane merge runs/seeds-0-9 runs/seeds-10-19 --out runs/all"))(merge)
app.command(epilog=examples("fedlane artifact runs/mine --out artifact.zip"))(artifact)
app.command(epilog=examples("fedlane city munich --stations 4 --out munich.npz"))(city)
app.command(epilog=examples("fedlane bench matching"))(bench)
app.command("testbed", epilog=examples("fedlane testbed --calibrate --policy lane --policy random"))(run_testbed)
app.add_typer(arena_commands.app, name="arena")
app.add_typer(privacy_commands.app, name="privacy")


def main() -> None:
    """Run the program. Bad input is reported in one line with exit code 2, never as a traceback."""
    accept_all_characters()
    try:
        code = _run_command()
        flush_output()
    except OSError as error:
        code = _report_output_error(error)
    sys.exit(code)


def _run_command() -> int:
    """Run the command that the program's arguments name, and return the exit code."""
    from fedlane.rounds import PolicyError

    try:
        command = typer.main.get_command(app)
        explain_arguments(command)
        with notes_for_warnings():
            code = command(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        code = _fail(dedupe_suggestion(error.format_message()))
    except (InputError, PolicyError) as error:
        code = _fail(str(error))
    except InterruptedRunError as error:
        return _interrupted(str(error))
    except MemoryError:
        code = _fail("not enough memory for this many clients, channels, rounds and seeds")
    except OSError as error:
        if (line := output_error(error)) is None:
            raise
        code = _fail(line)
    if code == 130:  # typer ended the command on Ctrl-C
        return _interrupted("interrupted")
    return code if isinstance(code, int) else 0


def _interrupted(line: str) -> int:
    messages.print(f"fedlane: {printable(line)}", highlight=False, markup=False, soft_wrap=True)
    return 130


def _report_output_error(error: OSError) -> int:
    """Report a stream that cannot be written on the other one; a pipe whose reader has left needs no report."""
    discard_failed_output()
    line = output_error(error)
    with contextlib.suppress(OSError):
        if line is not None:
            _fail(line)
            flush_output()
    discard_failed_output()
    return 1 if line is None else 2


def _fail(message: str) -> int:
    line = printable(" ".join(message.split()))
    messages.print(f"fedlane: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 2
