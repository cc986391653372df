"""The layers of tests, from the one without a server to the one with several servers. Called by test/run."""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree

TEST = pathlib.Path(__file__).resolve().parent
ROOT = TEST.parent
FULL = os.environ.get("OUTBOX_FULL", "") not in ("", "0")


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: list = dataclasses.field(default_factory=list)  # names
    skipped: list = dataclasses.field(default_factory=list)  # "name: reason"

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def run(*command, **kwargs):
    """Run a command and show its output."""
    sys.stdout.flush()
    return subprocess.run([*map(str, command)], **kwargs).returncode


def run_and_keep(*command, **kwargs):
    """The same, and return (exit status, its output)."""
    lines = []
    sys.stdout.flush()
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **kwargs
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, lines


def at_least_one(counts, status, name):
    """A layer that fails without a failed test (does not build, ends early) has failed all the same."""
    if status and not counts.failed:
        counts.failed.append(f"{name} (exit status {status})")
    return counts


def count_junit(path, status, layer):
    counts = Counts()
    if path.exists():
        for case in ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                counts.failed.append(name)
            elif skipped is not None:
                counts.skipped.append(f"{name}: {skipped.get('message')}")
            else:
                counts.passed += 1
    return at_least_one(counts, status, layer)


# ---- the layers


def unit(tmp, _pg_config, _arguments):
    """GoogleTest under AddressSanitizer and UndefinedBehaviorSanitizer, without a server; with both librdkafka at once."""
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = ["cmake", "--preset", "asan", "-Wno-dev", "--log-level=WARNING"]
        pg_config = f"-DPG_CONFIG={os.environ.get('PG_CONFIG', 'pg_config')}"
        print("compiling with sanitizers, which takes a minute or more", flush=True)
        status = run(*configure, pg_config, cwd=ROOT, stdout=subprocess.DEVNULL)
        status = status or run("cmake", "--build", "--preset", "unit", "--", "--quiet", cwd=ROOT)
    if status:
        return at_least_one(Counts(), status, "unit: build")
    counts = Counts()
    with real_kafka() as bootstrap:
        environment = {"OUTBOX_TEST_BOOTSTRAP": bootstrap} if bootstrap else {}
        runs = {"unit": environment}
        folder, version, why_not = current_librdkafka()
        if folder:
            # its interface is stable: the same program runs with it
            runs["unit_current_librdkafka"] = environment | {
                "LD_LIBRARY_PATH": str(folder / "lib"),
                "OUTBOX_TEST_LIBRDKAFKA": version,
            }
        else:
            counts.skipped.append(f"unit_current_librdkafka: {why_not}")
        with concurrent.futures.ThreadPoolExecutor() as threads:  # most of their time is waiting
            for result in threads.map(lambda name: run_unit(tmp, name, runs[name]), runs):
                counts.add(result)
    return counts


def run_unit(tmp, name, environment):
    report = tmp / f"{name}.xml"
    program = [ROOT / "build/asan/unit", "--gtest_brief=1", f"--gtest_output=xml:{report}"]
    with open(tmp / f"{name}.log", "w+") as log:
        status = run(*program, cwd=tmp, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT)
        log.seek(0)
        print(f"---- {name}\n{log.read()}", flush=True)
    counts = count_junit(report, status, name)
    counts.failed = [test if test.startswith(name) else f"{name}.{test}" for test in counts.failed]
    return counts


def current_librdkafka():
    """(its folder, its version, None), or (None, None, why it cannot be had)."""
    from harness import cache
    from harness import current_librdkafka as library

    try:
        return library.prefix(), library.VERSION, None
    except cache.Unavailable as reason:
        return None, None, reason


@contextlib.contextmanager
def real_kafka():
    """The address of a real broker for the unit tests that ask for one; None, and why, where there is none."""
    import pytest
    from harness import RealKafka

    try:
        kafka = RealKafka()
    except pytest.skip.Exception as reason:
        print(reason)
        yield None
        return
    with kafka:
        yield kafka.bootstrap


def sql(tmp, pg_config, _arguments):
    """pg_regress: what a user of SQL sees."""
    from harness import Cluster

    with Cluster() as cluster:
        output = tmp / "regress"
        settings = [f"PG_CONFIG={pg_config}", f"BUILD={os.environ.get('BUILD', 'build')}", f"REGRESS_OUTPUT={output}"]
        command = ["make", "-s", "--no-print-directory", "-C", ROOT, *settings, "installcheck"]
        status, lines = run_and_keep(*command, env=cluster.environment())
    counts = Counts()
    for line in lines:
        # PostgreSQL 15: "test name ... ok    12 ms"; from 16 on: "ok 1     - name    12 ms"
        found = re.match(r"(?:test )?\s*(\S+)\s+\.\.\. (ok|FAILED)", line)
        tap = re.match(r"(not ok|ok) \d+\s+[-+] (\S+)", line)
        name, ok = (found[1], found[2] == "ok") if found else (tap[2], tap[1] == "ok") if tap else (None, None)
        if ok:
            counts.passed += 1
        elif name:
            counts.failed.append(f"sql.{name}")
    differences = output / "regression.diffs"
    if status and differences.exists():
        print(differences.read_text(errors="replace"))
    return at_least_one(counts, status, "sql")


def majors(tmp, pg_config, _arguments):
    """pg_regress and ten seconds end to end on the other major versions of PostgreSQL."""
    counts = Counts()
    own = subprocess.check_output([pg_config, "--version"], text=True)
    for major in ("14", "15", "16", "17", "18"):
        if not own.startswith(f"PostgreSQL {major}"):
            print(f"---- PostgreSQL {major}", flush=True)
            counts.add(one_major(major, tmp / f"postgresql-{major}"))
    return counts


def one_major(major, folder):
    done = subprocess.run([TEST / "postgresql", major, folder / "server"], capture_output=True, text=True)
    if done.returncode == 3:
        reason = done.stderr.strip().splitlines()[-1]
        return Counts(skipped=[f"majors.{major}.{test}: {reason}" for test in ("sql", "e2e")])
    if done.returncode:
        print(done.stderr)
        return at_least_one(Counts(), done.returncode, f"majors.{major}: unpack")
    with other_environment(PG_CONFIG=done.stdout.strip(), BUILD=f"build/postgresql-{major}"):
        counts = install(folder / "installed")
        if not counts.failed:
            counts.add(sql(folder, os.environ["PG_CONFIG"], []))
            counts.add(e2e(folder, os.environ["PG_CONFIG"], ["-q", "-k", "ten_seconds"]))
    counts.failed = [f"majors.{major}.{name}" for name in counts.failed]
    counts.skipped = [f"majors.{major}.{name}" for name in counts.skipped]
    return counts


def memcheck(tmp, _pg_config, _arguments):
    """valgrind: end-to-end basics on a server with assertions. Not part of a run without names of layers."""
    done = subprocess.run([TEST / "postgresql", "assert", tmp / "assert"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return at_least_one(Counts(), done.returncode, "memcheck: PostgreSQL with assertions")
    logs = tmp / "valgrind"
    logs.mkdir()
    logs.chmod(0o777)
    with other_environment(PG_CONFIG=done.stdout.strip(), BUILD="build/assert", OUTBOX_SLOWNESS="20"):
        counts = install(tmp / "assert-installed")
        if counts.failed:
            return counts
        bindir = pathlib.Path(os.environ["PG_CONFIG"]).parent
        subprocess.run([TEST / "memcheck", bindir, tmp / "assert/valgrind.supp", logs], check=True)
        counts.add(e2e(tmp, os.environ["PG_CONFIG"], ["-k", "test_each_step_of_a_message", "--timeout=1800"]))
    counts.add(errors_of_valgrind(logs))
    return counts


def errors_of_valgrind(logs):
    """One test for each process that was looked at."""
    counts = Counts()
    for log in sorted(logs.iterdir()):
        text = log.read_text(errors="replace")
        if "VALGRINDERROR-BEGIN" in text:
            print(text[:20_000])
            counts.failed.append(f"memcheck.{log.stem}: {text.count('VALGRINDERROR-BEGIN')} errors")
        else:
            counts.passed += 1
    return counts if counts.passed or counts.failed else at_least_one(counts, 1, "memcheck: valgrind did not run")


@contextlib.contextmanager
def other_environment(**changes):
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def pgtap(_tmp, _pg_config, _arguments):
    """pgTAP: catalog and privileges."""
    from harness import Cluster

    with Cluster() as cluster:
        if not cluster.sql("SELECT name FROM pg_available_extensions WHERE name = 'pgtap'"):
            return Counts(skipped=["pgtap: this PostgreSQL has no extension pgtap"])
        cluster.createdb("pgtap")
        cluster.sql("CREATE EXTENSION pgtap", dbname="pgtap")
        command = ["pg_prove", "-v", "-d", "pgtap", *sorted((TEST / "pgtap").glob("*.sql"))]
        status, lines = run_and_keep(*command, env=cluster.environment())
    counts = Counts()
    for line in lines:
        found = re.match(r"(not ok|ok) \d+(?: - )?([^#]*)(?:# *SKIP *(.*))?", line, re.IGNORECASE)
        if not found:
            continue
        name = f"pgtap.{found[2].strip()}"
        if found[3] is not None:
            counts.skipped.append(f"{name}: {found[3]}")
        elif found[1] == "ok":
            counts.passed += 1
        else:
            counts.failed.append(name)
    return at_least_one(counts, status, "pgtap")


def e2e(tmp, _pg_config, arguments):
    """pytest: several sessions, brokers, crashes."""
    report = tmp / "e2e.xml"
    limit = 3600 if FULL else 300  # of one test: it ends with a stack trace instead of hanging
    # P: what tests have measured is shown
    command = [sys.executable, "-B", "-m", "pytest", TEST / "e2e", f"--timeout={limit}", f"--junitxml={report}", "-rsP"]
    return count_junit(report, run(*command, *arguments), "e2e")


LAYERS = {"unit": unit, "sql": sql, "pgtap": pgtap, "majors": majors, "e2e": e2e, "memcheck": memcheck}
BY_NAME_ONLY = {"memcheck"}
NEEDS_SERVER = {"sql", "pgtap", "majors", "e2e"}
FILES = {"unit": "unit/*.cpp", "sql": "../sql/*.sql", "pgtap": "pgtap/*.sql", "majors": "e2e/test_ten_seconds.py", "e2e": "e2e/test_*.py", "memcheck": "e2e/test_basics.py"}


# ---- around them


def install(tmp):
    """Returns whether it worked, and the status is shown."""
    command = [TEST / "installation", tmp / "postgresql"]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return at_least_one(Counts(), done.returncode, "build and install")
    # the copy runs and is no place to build in: it has no headers
    os.environ["OUTBOX_BUILD_PG_CONFIG"] = os.environ.get("PG_CONFIG", "pg_config")
    os.environ["PG_CONFIG"] = done.stdout.strip()
    return Counts()


def left_behind(tmp):
    """Processes that still run in or with a folder of this run: there must be none."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(tmp) in command or os.readlink(entry / "cwd").startswith(str(tmp)):
                found[int(entry.name)] = command.strip()
    return found


def run_layers(names, arguments, tmp):
    counts = Counts()
    pg_config = os.environ.get("PG_CONFIG", "pg_config")
    if NEEDS_SERVER & set(names):
        print("---- build and install", flush=True)
        counts.add(install(tmp))
        if counts.failed:
            return counts
    for name in names:
        if not list(TEST.glob(FILES[name])):
            continue
        print(f"---- {name}: {LAYERS[name].__doc__}", flush=True)
        started = time.monotonic()
        try:
            result = LAYERS[name](tmp, pg_config, arguments)
        except Exception as error:
            traceback.print_exc()
            result = Counts(failed=[f"{name}: {error}"])
        counts.add(result)
        print(
            f"---- {name}: {result.passed} passed, {len(result.failed)} failed, {len(result.skipped)} skipped"
            f" in {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return counts


def clean_up(tmp, counts):
    for pid, command in left_behind(tmp).items():
        counts.failed.append(f"left behind: {command}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(tmp, ignore_errors=True)


def main():
    words = sys.argv[1:]
    names = []
    while words and words[0] in LAYERS:
        names.append(words.pop(0))
    if words and not names and not words[0].startswith("-"):
        print(f"no layer {words[0]}; there are: {' '.join(LAYERS)}")
        return 2
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="outbox-test-"))
    tmp.chmod(0o755)
    os.environ["OUTBOX_TMP"] = str(tmp)
    sys.path.insert(0, str(TEST / "e2e"))
    # a terminated run still stops its servers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    counts = Counts()
    try:
        counts = run_layers(names or [name for name in LAYERS if name not in BY_NAME_ONLY], words, tmp)
    finally:
        clean_up(tmp, counts)
    for title, lines in (("skipped", counts.skipped), ("failed", counts.failed)):
        for line in lines:
            print(f"{title}: {' '.join(line.split())}")
    print(f"{counts.passed} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    return 1 if counts.failed else 0


sys.exit(main())
