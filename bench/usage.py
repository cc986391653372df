"""What processes use, read from /proc."""

import contextlib
import os
import pathlib

_TICK = os.sysconf("SC_CLK_TCK")


def _proc(pid, name):
    return pathlib.Path(f"/proc/{pid}/{name}").read_text()


def cpu_seconds(pids):
    """Of all threads of these processes; of one that is gone, nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _proc(pid, "stat").rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / _TICK
    return total


def cpu_seconds_of_children(pid):
    """Of those that have ended."""
    fields = _proc(pid, "stat").rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) / _TICK


def cpu_nanoseconds(pid):
    """The same by the scheduler's clock: a process that is nearly idle does not fill a tick."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def wakeups(pid):
    """How often the main thread has gone to sleep."""
    return _status(pid, "voluntary_ctxt_switches")


def rss_anon_kb(pid):
    return _status(pid, "RssAnon")


def command_line(pid):
    """Empty for a process that is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _status(pid, name):
    for line in _proc(pid, "status").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)
