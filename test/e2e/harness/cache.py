"""What tests fetch or build once: folders in the user's cache, outside of this checkout."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile


class Unavailable(Exception):
    """It cannot be had on this machine; the text says why. The tests that need it are skipped."""


_why_not = {}


def cached(name, fill):
    """The folder of this name, made by fill(folder) the first time; other test runs wait for the same one.

    A failure is remembered: it is not tried again by every test.
    """
    if name in _why_not:
        raise Unavailable(_why_not[name])
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "outbox-test" / name
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fill(folder, fill)
    except Unavailable as reason:
        _why_not[name] = str(reason)
        raise
    return folder


def _fill(folder, fill):
    with scratch(folder.parent) as partial:
        fill(partial)
        partial.chmod(0o755)
        partial.rename(folder)


@contextlib.contextmanager
def scratch(parent=None):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="partial-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(*command, timeout=600, **kwargs):
    """Run a command and return its output; Unavailable when it fails or takes too long."""
    words = [*map(str, command)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **kwargs
        )
    except FileNotFoundError:
        raise Unavailable(f"there is no {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[0]} took more than {timeout} s") from None
    if done.returncode:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if any(word in line for word in ("ERROR", "ERR!", "error"))]
        errors = errors or lines[-1:] or ["no reason given"]
        raise Unavailable(f"{' '.join(words[:2])} failed: {errors[0].strip()}")
    return done.stdout
