"""`WatchServer`: the page about a folder of runs, live, for browsers on this machine.

It listens on 127.0.0.1 and serves two things, by GET alone: the page at ``/``, and at ``/events`` a stream of
server-sent events (``page``: what `page_data` returns; ``live``: what runs do now). Requests for another host are
refused, so that no web site can read the page by pointing its own name at this machine (DNS rebinding). Files are
looked at about once a second, and only while somebody is connected; nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nestling.errors import NestlingError
from nestling.report.live_state import LiveRuns
from nestling.report.page import page_data, page_html

_EVERY = 1.0  # seconds between two looks at the files
_SHARE = 3  # a look that takes long is followed by a pause of so many times as long
_HEARTBEAT = 15.0  # seconds after which a silent stream sends a comment, by which a closed tab is noticed
_TIMEOUT = 30.0  # seconds for a request to arrive, and for an event to leave
_MAX_STREAMS = 64

logger = logging.getLogger("nestling")


class Snapshots:
    """The newest data of a folder, made by a thread that looks while there are listeners."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runs = folder, LiveRuns(folder)
        self._looking = threading.Lock()
        self._changed = threading.Condition()
        self._listeners = 0
        self._closed = False
        self._last_look = self._last_page = -1e9
        self._look_seconds = self._page_seconds = 0.0
        self._stamps: object = None
        self._latest = {"page": ("", ""), "live": ("", "")}  # kind → its digest and its JSON
        threading.Thread(target=self._look_on, name="nestling-watch", daemon=True).start()

    def current(self) -> dict[str, tuple[str, str]]:
        """Return the newest data: its kind, ``page`` or ``live`` → a digest and the JSON."""
        with self._looking:
            if time.monotonic() - self._last_look >= max(_EVERY, _SHARE * self._look_seconds):
                self._look()
        return dict(self._latest)

    def listen(self) -> bool:
        """Count a listener; return False if there are too many."""
        with self._changed:
            if self._listeners >= _MAX_STREAMS or self._closed:
                return False
            self._listeners += 1
            self._changed.notify_all()
        return True

    def leave(self) -> None:
        """Count a listener that has gone."""
        with self._changed:
            self._listeners -= 1

    def wait(self, seen: dict[str, str]) -> dict[str, tuple[str, str]] | None:
        """Return data whose digests are not those in `seen`, after a while without any; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._news(seen), _HEARTBEAT)
            return None if self._closed else self._news(seen)

    def close(self) -> None:
        """End the thread, and all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _news(self, seen: dict[str, str]) -> dict[str, tuple[str, str]]:
        return {kind: latest for kind, latest in self._latest.items() if latest[0] and latest[0] != seen.get(kind)}

    def _look_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._listeners)
                if self._closed:
                    return
            try:
                self.current()
            except Exception:  # a file system may do anything; the next look may succeed
                logger.exception("the runs could not be read")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, max(_EVERY, _SHARE * self._look_seconds))

    def _look(self) -> None:
        began = time.monotonic()
        stamps = self._runs.stamps()
        self._publish("live", self._runs.now(stamps))
        self._look_seconds = time.monotonic() - began  # without the page, which is slower and has its own pace
        due = began - self._last_page >= max(_EVERY, _SHARE * self._page_seconds)
        if due and stamps != self._stamps:  # else it is due at a later look
            page_began = time.monotonic()
            self._publish("page", page_data(self._folder, live=True))
            self._stamps, self._last_page = stamps, time.monotonic()
            self._page_seconds = self._last_page - page_began
        self._last_look = time.monotonic()

    def _publish(self, kind: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        with self._changed:
            self._latest[kind] = hashlib.sha256(text.encode()).hexdigest()[:16], text
            self._changed.notify_all()


class WatchServer(ThreadingHTTPServer):
    """Serves the live page of a folder.

    Parameters
    ----------
    folder
        A run directory, or a folder that holds some.
    port
        The port; 0 for any that is free.

    Examples
    --------
    >>> with WatchServer(Path("runs")) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise NestlingError(f"port {port} cannot be used ({reason}): give another --port, or none") from None
        self.snapshots = Snapshots(folder)
        names = ("127.0.0.1", "localhost")
        self.hosts = {f"{name}:{self.server_port}" for name in names} | (
            set(names) if self.server_port == 80 else set()
        )

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        problem: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.snapshots.close()
        super().__exit__(kind, problem, trace)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request, unless the browser has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.exception("a request failed")


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "nestling", ""
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        """Answer with the page, or with events."""
        if not self._for_us():
            return
        address = urlsplit(self.path)
        if self.path == "/":
            digest, text = self.server.snapshots.current()["page"]
            page = page_html({**json.loads(text), "version": digest}, live=True)
            self._answer(HTTPStatus.OK, page, "text/html")
        elif address.path == "/events" and not (address.scheme or address.netloc):
            self._send_events(parse_qs(address.query).get("page", [""])[0])
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is only one page: /\n")

    def _refuse(self) -> None:
        if self._for_us():
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is possible\n", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _for_us(self) -> bool:
        """Return whether the request names this server; answer that it does not otherwise."""
        hosts = self.headers.get_all("Host", [])
        origin = self.headers.get("Origin")
        if len(hosts) == 1 and hosts[0].lower() in self.server.hosts:
            if origin is None or origin.lower().removeprefix("http://") in self.server.hosts:
                return True
        self._answer(HTTPStatus.FORBIDDEN, f"this server answers to {self.server.url} alone\n")
        return False

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain", **headers: str) -> None:
        body = text.encode(errors="replace")
        self._send_head(status, kind, {"Content-Length": str(len(body)), **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.close_connection = True
        self.send_response(status)
        always = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Connection": "close",
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",  # the page has the rest of its policy
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in (always | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _send_events(self, page: str) -> None:
        """Send events until the browser goes; `page` is the digest of the data that it shows already."""
        snapshots, seen = self.server.snapshots, {"page": page}
        if not snapshots.listen():
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many tabs are open\n")
            return
        try:
            self._send_head(HTTPStatus.OK, "text/event-stream", {})
            snapshots.current()
            while (news := snapshots.wait(seen)) is not None:
                for kind, (digest, text) in news.items():
                    self.wfile.write(f"event: {kind}\nid: {digest}\ndata: {text}\n\n".encode(errors="replace"))
                    seen[kind] = digest
                if not news:
                    self.wfile.write(b": still here\n\n")
                self.wfile.flush()
        except (ConnectionError, TimeoutError):  # the tab was closed
            return
        finally:
            snapshots.leave()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: requests are of no interest."""
