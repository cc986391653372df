"""A current librdkafka beside Debian's, and a PostgreSQL with an outbox that uses it.

Debian 12 has 2.0.2, with which outbox is built by default. The source of a current one comes with the npm package
node-rdkafka; it is built once, into the user's cache. Its own configure is used: with cmake it cannot be built without
curl's headers (2.12.0 includes them even where it is told to go without curl).
"""

import hashlib
import os
import pathlib
import shutil
import subprocess

from . import cache, processes

VERSION = "2.12.0"
_PACKAGE = "node-rdkafka@3.6.1"
_SHA256 = "148f7e7b65c510314c70762d8f1be052c8fe1fdf03a128e6c78083a729a57a30"
# nothing of Kerberos and OAuth is tested; SCRAM and TLS come with OpenSSL
_CONFIGURE = ("--no-download", "--disable-gssapi", "--disable-curl", "--disable-lz4-ext")
_INSTALLATION = pathlib.Path(__file__).resolve().parents[2] / "installation"


def prefix():
    """The folder with include/ and lib/; raises cache.Unavailable. About 2 minutes the first time."""
    recipe = " ".join((_PACKAGE, _SHA256, *_CONFIGURE))
    return cache.cached(f"librdkafka-{VERSION}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}", _build)


def _build(folder):
    if not shutil.which("npm"):
        raise cache.Unavailable("no npm to fetch its source (Debian: npm)")
    with cache.scratch() as work:
        cache.run("npm", "pack", "--loglevel=error", "--pack-destination", work, _PACKAGE)
        (archive,) = work.glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != _SHA256:
            raise cache.Unavailable(f"{archive.name} has the SHA-256 {found}")
        cache.run("tar", "-xzf", archive, "-C", work)
        source = work / "package" / "deps" / "librdkafka"
        features = cache.run("./configure", f"--prefix={folder}", *_CONFIGURE, cwd=source)
        for needed in ("SSL", "ZLIB", "ZSTD"):
            if needed not in features.partition("BUILT_WITH")[2].split():
                raise cache.Unavailable(f"no headers for {needed} (Debian: libssl-dev, zlib1g-dev, libzstd-dev)")
        cache.run("make", "-s", "-C", "src", f"-j{os.cpu_count()}", cwd=source, timeout=1200)
        cache.run("make", "-s", "-C", "src", "install", cwd=source)


def install():
    """Builds outbox against it, into a copy of the PostgreSQL; (pg_config, folder to remove), or cache.Unavailable."""
    build_for = os.environ.get("OUTBOX_BUILD_PG_CONFIG") or os.environ.get("PG_CONFIG", "pg_config")
    environment = os.environ | {"OUTBOX_LIBRDKAFKA": str(prefix()), "PG_CONFIG": build_for, "BUILD": "build/current-librdkafka"}
    folder = processes.make_folder("pg-current-")
    done = subprocess.run(
        [_INSTALLATION, folder], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        processes.remove_folder(folder)
        raise AssertionError(f"outbox does not build with librdkafka {VERSION}:\n{done.stderr[-5000:]}")
    return done.stdout.strip(), folder
