"""Rebuild an artifact of FedLane: play its runs again, compare them with the packed ones, write tables and figures.

python rebuild.py [OUT] [--device cpu|cuda]

OUT is a new folder (default: rebuilt, in the artifact). The exit code is 0 if everything agrees within the limits that
README.md states, 1 if not, and 2 if the artifact cannot be rebuilt.
"""

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Rebuild the artifact in this file's folder and print what was compared."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Play the runs of this artifact again and compare them.")
    parser.add_argument("out", nargs="?", type=Path, default=here / "rebuilt", help="new folder (default: rebuilt)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the class of device that each run used")
    options = parser.parse_args(arguments)
    try:
        from fedlane.experiments.rebuilding import rebuild
        from fedlane.validate import InputError
    except ImportError as error:
        print(f"{error}: install the packages of requirements.txt first", file=sys.stderr)
        return 2
    sys.path.insert(0, str(here / "code"))  # modules that the runs import
    try:
        agree = rebuild(here, options.out, options.device, lambda line: print(line, flush=True))
    except InputError as error:
        print(f"rebuild: {error}", file=sys.stderr)
        return 2
    print("everything agrees" if agree else "NOT everything agrees")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
