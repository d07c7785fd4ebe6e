"""`fedlane-supernode`: Flower's SuperNode with shorter polling intervals and pre-forked ClientApps.

    fedlane-supernode [--look-every S] [--preload MODULE] ... and every option of flower-supernode

An idle SuperNode polls for work every 3 s and its SuperExec every second; each message starts a process that imports
Flower, and that process polls for the model at intervals that double. Here the node and its SuperExec poll more often
(the latter through Flower's own setting), and ClientApps are forked by a prefork server and poll for their model
equally often.
"""

import argparse
import contextlib
import importlib.util
import os
import sys

from fedlane import __version__

LOOK_S = 0.25
_SUPEREXEC_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
_MIN_S, _MAX_S = 0.01, 60.0


def main() -> None:
    """Start a node; exit as flower-supernode does."""
    parser = make_parser()
    try:
        from flwr.supernode.cli.flower_supernode import flower_supernode
    except ModuleNotFoundError:
        from fedlane.validate import missing_extra

        parser.exit(2, f"{missing_extra('fedlane-supernode', 'flower')}\n")
    from fedlane.flower._adapted import look_every
    from fedlane.flower.node.prefork import prefork_server

    options, flower_options = parser.parse_known_args()
    asks_help = bool({"-h", "--help"} & set(flower_options))
    asks_version = bool({"-V", "--version"} & set(flower_options))
    if asks_help:
        parser.print_help()
        print("\nand, from flower-supernode:\n", flush=True)
    elif asks_version:
        print(f"FedLane version: {__version__}", flush=True)
    isolation = ["--isolation", options.isolation] if options.isolation else []
    sys.argv = ["fedlane-supernode", *flower_options, *isolation]
    look_every(options.look_every)
    local_s = min(options.look_every, LOOK_S)  # polls within this machine put no load on the SuperLink
    os.environ.setdefault(_SUPEREXEC_POLL, str(local_s))
    with contextlib.ExitStack() as stack:
        # With --isolation process, the node does not start the apps.
        if not (asks_help or asks_version) and options.isolation != "process":
            stack.enter_context(prefork_server(local_s, options.preload))
        flower_supernode()


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the options that FedLane adds to those of flower-supernode."""
    parser = argparse.ArgumentParser(
        prog="fedlane-supernode",
        description="Flower's SuperNode with shorter polling intervals. Accepts every option of flower-supernode.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--look-every", type=_seconds, default=LOOK_S, metavar="S", help=f"seconds between polls (default: {LOOK_S:g})"
    )
    parser.add_argument(
        "--preload",
        action="append",
        type=_module,
        default=[],
        metavar="MODULE",
        help="module to import once for all messages (not your app, nor one that creates a random generator)",
    )
    parser.add_argument("--isolation", help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not _MIN_S <= value <= _MAX_S:
        raise argparse.ArgumentTypeError(f"must be from {_MIN_S:g} to {_MAX_S:g} s, got {text}")
    return value


def _module(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"not a module name: {text!r}")
    if importlib.util.find_spec(text.partition(".")[0]) is None:
        raise argparse.ArgumentTypeError(f"no module named {text!r}")
    return text


if __name__ == "__main__":
    main()
