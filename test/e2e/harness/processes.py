"""Ports, temporary folders, and processes that run as another user: PostgreSQL refuses to run as root."""

import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import tempfile

from .waiting import wait_until

_ports = random.SystemRandom()  # the seed of the tests must not decide about ports


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count):
    """`count` neighbouring free ports; the first one is returned.

    Below the ephemeral range: an outgoing connection must not take the port of a server that is down for a while.
    """
    for _ in range(1000):
        first = _ports.randrange(10000, 32000)
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError("no free ports")


def free_port():
    return free_ports(1)


def server_user():
    """Arguments for subprocess that make PostgreSQL's programs run as user postgres when we are root."""
    if os.geteuid() != 0:
        return {}
    postgres = pwd.getpwnam("postgres")
    return {"user": postgres.pw_uid, "group": postgres.pw_gid, "extra_groups": []}


def make_folder(prefix, for_server=False):
    """A temporary folder in $OUTBOX_TMP or the system's; owned by the server's user if asked."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("OUTBOX_TMP")))
    if for_server and os.geteuid() == 0:
        user = server_user()
        os.chown(folder, user["user"], user["group"])
    folder.chmod(0o755)
    return folder


def remove_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def rss_anon_kb(pid):
    """Memory of the process's own; None if it is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")), None)


def processes_in(folder):
    """Pids of the processes whose working directory is this folder: for a data directory, all of a server's."""
    wanted = str(folder)
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "cwd") == wanted and is_alive(entry.name):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def send(pid, number):
    """Send a signal; False if there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end_processes(pids, timeout=20):
    """SIGKILL them and wait until they are gone."""
    for pid in pids:
        send(pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), timeout, f"processes {pids} end")


def tail(path, lines=150):
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"
