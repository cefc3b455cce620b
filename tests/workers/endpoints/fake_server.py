"""One small HTTP server per dialect, with the faults that were seen in public as switches."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.workers.endpoints.fake_model import SPECIAL, FakeModel, split

KEY = "sk-fake-9f8e7d6c5b4a"
SECRET_PATH = "/home/operator/models/secret.gguf"
Json = dict[str, Any]


@dataclass
class Faults:
    """What the server does wrong; numbers count how many answers are wrong before it recovers."""

    echo_ignored: bool = False
    null_in_answer: bool = False
    minus_9999: bool = False
    processed: bool = False  # log-probabilities after sampling
    off_by_one: bool = False
    keeps: int = 0  # tokens of the context that are kept, silently
    busy: int = 0  # 429 with Retry-After
    half: int = 0
    html: int = 0
    slow: float = 0.0
    usage: str = ""  # "missing", "constant"
    usage_grows: int = 0  # tokens that the server adds to every prompt, a hidden system prompt
    changes_after: int = 0  # calls after which another model answers
    changes_name: bool = False
    redirect: str = ""
    huge: bool = False
    hidden_key: bool = False  # the answer to a bad request repeats the key


class Declined(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, body: Any = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body or {"error": {"message": f"bad request for {SECRET_PATH}", "type": "bad"}}


@dataclass
class Generation:
    """A prompt and what the model makes of it."""

    prompt: list[str]
    tokens: list[str] = field(default_factory=list)
    rows: list[tuple[str, float, list[tuple[str, float]]]] = field(default_factory=list)


class FakeServer:
    """Serves a model in one dialect on a free port until it is closed."""

    bos: tuple[str, ...] = ()
    most_listed = 20
    key_header = "authorization"
    version = "fp_1"

    def __init__(self, model: FakeModel, faults: Faults | None = None, context: int = 4096) -> None:
        self.model, self.faults, self.context = model, faults or Faults(), context
        self.other = FakeModel(lambda _: 0.31, flavour="other")
        self.answered: Counter[str] = Counter()
        self.requests = self.under_way = self.most_under_way = 0
        self.without_limit = self.tokens_told = self.longest_told = 0
        self.bodies: list[tuple[str, Json]] = []
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, *_: Any) -> None:
                return

            def do_POST(self) -> None:
                server.handle(self)

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                return

        self._http = Threads(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- one request

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        raw = http.rfile.read(int(http.headers["Content-Length"]))
        with self._lock:
            self.requests += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            fault = self._take_fault()
        try:
            self._reply(http, raw, fault)
        finally:
            with self._lock:
                self.under_way -= 1

    def _take_fault(self) -> str:
        for name in ("busy", "half", "html"):
            left = getattr(self.faults, name)
            if left:
                setattr(self.faults, name, left - 1)
                return name
        return ""

    def _reply(self, http: BaseHTTPRequestHandler, raw: bytes, fault: str) -> None:
        faults = self.faults
        if faults.slow:
            time.sleep(faults.slow)
        if faults.redirect:
            return self._send(http, 307, b"{}", Location=faults.redirect)
        if fault == "busy":
            return self._send(http, 429, b'{"error": "slow down"}', Retry_After="7")
        if fault == "html":
            page = b"<html><body>Please log in to the proxy</body></html>"
            return self._send(http, 200, page, Content_Type="text/html")
        if self.known(http.path) and self.key_of(http) != KEY:
            body = {"error": {"message": f"Incorrect API key provided: {self.key_of(http)}"}}
            return self._send(http, 401, json.dumps(body).encode())
        body = json.loads(raw)
        try:
            status, answer = 200, self.route(http.path, body)
        except Declined as declined:
            status, answer = declined.status, declined.body
        sent = json.dumps(answer).encode()
        if faults.huge:
            sent = b'{"filler": "' + b"x" * (5 * 2**20) + b'"}'
        if status == 200 and fault != "half":
            with self._lock:
                self.answered[f"{http.path} {json.dumps(body, sort_keys=True)}"] += 1
                self.bodies.append((http.path, body))
        self._send(http, status, sent, half=fault == "half")
        return None

    def key_of(self, http: BaseHTTPRequestHandler) -> str:
        return str(http.headers.get(self.key_header, "")).removeprefix("Bearer ")

    @staticmethod
    def _send(
        http: BaseHTTPRequestHandler, status: int, body: bytes, half: bool = False, **more: str
    ) -> None:
        http.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        for name, value in headers.items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            http.close_connection = True

    # ---- what dialects share

    def route(self, path: str, body: Json) -> Any:
        found = self.known(path)
        if found is None:
            raise Declined(404)
        return found(body)

    def known(self, path: str) -> Any:
        """What answers at a path, or None."""
        return getattr(self, "do_" + path.strip("/").replace("/", "_").removeprefix("v1_"), None)

    @property
    def now(self) -> FakeModel:
        """The model that answers now."""
        after = self.faults.changes_after
        return self.other if after and sum(self.answered.values()) >= after else self.model

    def fit(self, prompt: list[str]) -> list[str]:
        """The prompt as the server reads it."""
        prompt = [*self.bos, *prompt]
        if self.faults.keeps:
            return prompt[-self.faults.keeps :]
        if len(prompt) > self.context:
            message = f"This model's maximum context length is {self.context} tokens"
            raise Declined(400, {"error": {"message": message, "code": 400}})
        return prompt

    def chat_tokens(self, messages: list[Json], *, continued: bool) -> list[str]:
        found: list[str] = []
        for message in messages:
            found += [f"<{message['role']}>", *split(message["content"]), "<end>"]
        return found[:-1] if continued else [*found, "<assistant>"]

    def generate(
        self,
        prompt: list[str],
        count: int,
        listed: int = 0,
        bias: dict[str, float] | None = None,
        forced: list[str] | None = None,
    ) -> Generation:
        """Greedy tokens with their raw log-probabilities; `forced` ones are generated instead."""
        made = Generation(self.fit(prompt))
        biased = [self.now.token(int(i)) for i, value in (bias or {}).items() if value >= 100]
        for place in range(count):
            context = [*made.prompt, *made.tokens]
            top = self.now.best(context, max(1, listed))
            token = top[0][0]
            if forced is not None:
                if place >= len(forced):
                    break
                token = forced[place]
            elif biased:
                token = biased[0]
            nats = self.now.nats(context, token)
            if self.faults.processed:
                nats, top = 0.0, [(token, 0.0)]
            if self.faults.minus_9999:
                nats, top = 0.0, [(token, 0.0)] + [(t, -9999.0) for t, _ in top if t != token]
            if self.faults.null_in_answer:
                nats = None  # type: ignore[assignment]
            made.rows.append((token, nats, top[:listed]))
            if token in SPECIAL:  # the reply ends, and its end is not written out
                break
            made.tokens.append(token)
        return made

    def prompt_nats(self, prompt: list[str]) -> list[float | None]:
        """Log-probability of each token of a prompt given those before it; the first null."""
        later = 1 if self.faults.off_by_one else 0
        near = max(1, len(prompt) - 12)  # nobody reads the others, and they take long
        found: list[float | None] = [None, *(-1.0 for _ in range(1, near))]
        found += [self.now.nats(prompt[: i + later], prompt[i]) for i in range(near, len(prompt))]
        if self.faults.null_in_answer:
            found[-1] = None
        if self.faults.minus_9999:
            found[-1] = -9999.0
        if self.faults.processed:
            found = [None, *(0.0 for _ in prompt[1:])]
        return found

    def usage(self, made: Generation) -> Json:
        if self.faults.usage == "missing":
            return {}
        read = 7 if self.faults.usage == "constant" else len(made.prompt) + self.faults.usage_grows
        with self._lock:
            self.tokens_told += read + len(made.rows)
            self.longest_told = max(self.longest_told, read + len(made.rows))
        used = {"prompt_tokens": read, "completion_tokens": len(made.rows)}
        return {"usage": {**used, "total_tokens": read + len(made.rows)}}

    def named(self, asked: str) -> Json:
        changed = self.faults.changes_name and self.now is self.other
        return {"model": "another-model" if changed else asked, "system_fingerprint": self.version}

    def count_of(self, body: Json, least: int = 1) -> int:
        """Tokens to generate."""
        count = int(body.get("max_tokens", 16))
        if count < least:
            self.without_limit += 1
            raise Declined(400)
        return count
