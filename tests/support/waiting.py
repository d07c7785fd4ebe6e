"""Waiting for events instead of guessing how long they take."""

import time


def wait_for(condition, seconds=120.0, explain=lambda: "", every_s=0.1):
    """Poll until ``condition()`` is true; after ``seconds`` fail with what ``explain()`` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"nothing within {seconds} s\n{explain()[-6000:]}"
        time.sleep(every_s)
