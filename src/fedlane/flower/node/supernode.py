"""`fedlane-supernode`: Flower's SuperNode without most of its waits.

    fedlane-supernode [--look-every S] [--preload MODULE] ... and every option of flower-supernode

A SuperNode without work looks for it every 3 s, its SuperExec every second, each message starts a process that imports
Flower anew, and that process waits for the model with pauses that double. Here the node looks more often, SuperExec too
(by Flower's own setting), and ClientApps are born in a `nursery` and look for their model as often.
"""

import argparse
import contextlib
import importlib.util
import os
import sys

from fedlane import __version__

LOOK_S = 0.25
_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
_LEAST_S, _MOST_S = 0.01, 60.0


def main() -> None:
    """Start a node; ends as flower-supernode does."""
    parser = argparse.ArgumentParser(
        prog="fedlane-supernode",
        description="Flower's SuperNode without most of its waits. Takes every option of flower-supernode.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--look-every", type=_seconds, default=LOOK_S, metavar="S", help=f"seconds between looks for work ({LOOK_S:g})"
    )
    parser.add_argument(
        "--preload",
        action="append",
        type=_module,
        default=[],
        metavar="MODULE",
        help="import once for all messages: not your app, nor what draws random numbers when it is imported",
    )
    parser.add_argument("--isolation", help=argparse.SUPPRESS)
    try:
        from flwr.supernode.cli.flower_supernode import flower_supernode
    except ImportError as error:
        parser.exit(2, f"fedlane-supernode needs Flower: install fedlane[flower] ({error.name} is missing)\n")
    from fedlane.flower._adapted import look_every
    from fedlane.flower.node.prefork import prefork_server

    given, theirs = parser.parse_known_args()
    asks_help, asks_version = bool({"-h", "--help"} & set(theirs)), bool({"-V", "--version"} & set(theirs))
    if asks_help:
        parser.print_help()
        print("\nand, from flower-supernode:\n", flush=True)
    elif asks_version:
        print(f"FedLane version: {__version__}", flush=True)
    sys.argv = ["fedlane-supernode", *theirs, *(["--isolation", given.isolation] if given.isolation else [])]
    look_every(given.look_every)
    near_s = min(given.look_every, LOOK_S)  # what only this machine notices
    os.environ.setdefault(_POLL, str(near_s))
    with contextlib.ExitStack() as stack:
        if not (asks_help or asks_version) and given.isolation != "process":  # then somebody else starts the apps
            stack.enter_context(prefork_server(near_s, given.preload))
        flower_supernode()


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not _LEAST_S <= value <= _MOST_S:
        raise argparse.ArgumentTypeError(f"must be from {_LEAST_S:g} to {_MOST_S:g} s, got {text}")
    return value


def _module(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"not a module's name: {text!r}")
    if importlib.util.find_spec(text.partition(".")[0]) is None:
        raise argparse.ArgumentTypeError(f"no module named {text!r}")
    return text


if __name__ == "__main__":
    main()
