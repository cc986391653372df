"""Waiting is always polling for a condition, with a limit."""

import time


def wait_until(predicate, timeout=30.0, message="", interval=0.02):
    """Call predicate until it returns something true and return that; AssertionError after `timeout` seconds.

    `message` is a string or a function that makes one (called only on failure); the last value is added.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            text = message() if callable(message) else message
            raise AssertionError(f"not within {timeout} s: {text or predicate!r} (last: {value!r})")
        time.sleep(interval)
