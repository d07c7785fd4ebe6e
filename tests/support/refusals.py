"""Whether input is refused."""

import contextlib

from fedlane.validate import InputError


def refused(use, *arguments):
    """Whether a function refuses its arguments with an `InputError`; any other error fails the test."""
    with contextlib.suppress(InputError):
        use(*arguments)
        return False
    return True
