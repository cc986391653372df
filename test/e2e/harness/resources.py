"""The servers in use, so that a failing test can show their logs."""

_in_use = []


class Resource:
    """Something with a log and a close(); a context manager."""

    def register(self):
        _in_use.append(self)

    def unregister(self):
        if self in _in_use:
            _in_use.remove(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        raise NotImplementedError

    def log_sections(self):
        """Pairs (title, text) for the report of a failed test."""
        raise NotImplementedError


def in_use():
    return list(_in_use)
