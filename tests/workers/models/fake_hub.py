"""A hub on this machine: the few routes that resolving and downloading use, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """Repositories by id: the files of one commit, and how the hub answers for them."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.disabled: set[str] = set()
        self.status: int | None = None
        self.downloaded: list[str] = []
        self.authorizations: set[str | None] = set()
        self.url = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a GET."""
        if self.status is not None:
            return self.status, {}, b"{}"
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            return self._api(parts[2:])
        return self._file(parts)

    def _repository(self, parts: list[str]) -> tuple[str, list[str]]:
        for length in (2, 1):
            name = "/".join(parts[:length])
            if name in self.files:
                return name, parts[length:]
        return "", []

    def _api(self, parts: list[str]) -> tuple[int, dict[str, str], bytes]:
        name, rest = self._repository(parts)
        if not name:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if name in self.disabled:
            return 403, {"X-Error-Message": "Access to this resource is disabled."}, b"{}"
        if rest[:1] == ["revision"] and rest[1] not in (COMMIT, "main", "v1"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        listing = self.files[name]
        if rest[:1] == ["tree"]:
            entries: Any = [
                {"type": "file", "path": path, "size": len(content), "oid": _etag(content)}
                for path, content in listing.items()
            ]
        else:
            entries = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": p} for p in listing]}
        return 200, {"Content-Type": "application/json"}, json.dumps(entries).encode()

    def _file(self, parts: list[str]) -> tuple[int, dict[str, str], bytes]:
        name, rest = self._repository(parts)
        if name in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        path = "/".join(rest[2:])
        if not name or path not in self.files[name]:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = self.files[name][path]
        self.downloaded.append(path)
        return 200, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT}, content


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub that answers until the context ends; `url` is its endpoint."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def _reply(self, *, with_body: bool) -> None:
            hub.authorizations.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
