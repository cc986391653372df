"""One test, two sizes: CI size by default, full size with OUTBOX_FULL=1 (`make soak`). The seed is printed by pytest."""

import os
import random

FULL = os.environ.get("OUTBOX_FULL", "") not in ("", "0")
SEED = int(os.environ.get("OUTBOX_SEED") or random.SystemRandom().randrange(1, 2**31))


def size(ci, full):
    """The CI size or the full size."""
    return full if FULL else ci


def seeded(name=""):
    """A random.Random of this run's seed, one stream for each name (a writer, a test)."""
    return random.Random(f"{SEED}/{name}")
