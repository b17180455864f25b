"""A server of the live page, for tests."""

import threading
from contextlib import contextmanager

from nestling.report.watch_server import WatchServer
from tests.processes import LIMIT


@contextmanager
def serving(folder, port=0):
    """Serve the page about a folder in a thread, and end it in any case."""
    with WatchServer(folder, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(LIMIT)
