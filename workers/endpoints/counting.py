"""How many tokens a text has, in the served model's own tokens.

By the server's route that tokenizes, where it has one (vLLM, llama.cpp, SGLang, TGI, llama-cpp-
python: five shapes, found by trying), else by `usage` of a call that generates one token, which is
paid for. A route counts only if its numbers grow with the text: some servers answer 200 with an
empty list to a field they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lacuna.contract.errors import (
    EndpointIncapable,
    EndpointTruncates,
)
from workers.endpoints.answers import count_of
from workers.endpoints.client import EndpointClient

BASE = "a"
"""Text in front of what `usage` counts, since servers refuse an empty prompt."""
LINE = "a\n"
"""The same for a text that begins with a word: no tokenizer joins a word to the line before it."""
WORDS = " lantern harbour cabinet bridge"
"""Four words, which no tokenizer joins."""


@dataclass(frozen=True)
class Route:
    """A route that tokenizes: where, and what it is asked."""

    path: str
    text_field: str
    more: tuple[tuple[str, Any], ...] = ()
    names_model: bool = False

    def body(self, text: str, model: str) -> dict[str, Any]:
        """What is sent for a text."""
        named = {"model": model} if self.names_model else {}
        return {**named, self.text_field: text, **dict(self.more)}


ROUTES = (
    Route(
        "/tokenize", "prompt", (("add_special_tokens", False),), names_model=True
    ),  # vLLM, SGLang
    Route("/tokenize", "content", (("add_special", False),)),  # llama.cpp
    Route("/tokenize", "inputs"),  # TGI
    Route("/extras/tokenize", "input"),  # llama-cpp-python
)


def ids_of(answer: Any) -> list[int]:
    """Token ids in the answer of any of the routes."""
    rows = answer.get("tokens") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise EndpointIncapable("no list of tokens")
    ids: list[int] = []
    for row in rows:
        number = count_of(row.get("id") if isinstance(row, dict) else row)
        if number is None:
            raise EndpointIncapable("tokens without ids")
        ids.append(number)
    return ids


@dataclass
class Counter:
    """Counts tokens of texts alone, without special tokens, and remembers them."""

    client: EndpointClient
    chat: bool
    """Whether `usage` is asked through the chat template."""
    route: Route | None = None
    calls: int = 0
    """Calls made to count, kept answers included."""
    _special: list[int] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _ids: dict[str, list[int]] = field(default_factory=dict)

    async def find_route(self) -> Route | None:
        """Try the routes and keep the first that counts; None: `usage` will count."""
        for route in ROUTES:
            try:
                short = await self._tokenize(route, WORDS)
                long = await self._tokenize(route, WORDS * 3)
                if not (len(short) >= 4 and len(short) * 2 < len(long) <= len(short) * 4):
                    continue
                self._special = await self._special_tokens(route)
            except EndpointIncapable:
                continue
            self.route = route
            break
        return self.route

    async def _special_tokens(self, route: Route) -> list[int]:
        """What the route puts in front of every text (a beginning of text), if anything."""
        first, second = (
            await self._tokenize(route, " lantern"),
            await self._tokenize(route, " harbour bridge"),
        )
        return first[:1] if len(first) > 1 and first[0] == second[0] else []

    async def _tokenize(self, route: Route, text: str) -> list[int]:
        self.calls += 1
        answer = await self.client.post(
            route.path,
            route.body(text, self.client.endpoint.model),
            ids_of,
            reader="tokenize",
            root=True,
            free=True,
        )
        return list(answer.picked)

    async def ids(self, text: str) -> list[int] | None:
        """The text's own tokens, or None where no route tells them."""
        if self.route is None:
            return None
        if text not in self._ids:
            found = await self._tokenize(self.route, text)
            start = len(self._special) if found[: len(self._special)] == self._special else 0
            self._ids[text] = found[start:]
        return self._ids[text]

    async def count(self, text: str) -> int:
        """Tokens of the text alone.

        Raises:
            EndpointTruncates: the server has no route that counts, and its `usage` does not say.
        """
        if not text:
            return 0
        if (own := await self.ids(text)) is not None:
            return len(own)
        if text not in self._known:
            base = BASE if text[0].isspace() else LINE
            before = await self._usage(base)
            self._known[text] = max(0, await self._usage(base + text) - before)
        return self._known[text]

    async def _usage(self, text: str) -> int:
        self.calls += 1
        return await usage_of_prompt(self.client, text, chat=self.chat)

    async def first_piece(self, answer: str) -> str | None:
        """Text of the answer's first token; None where that is not known.

        The answer itself if it is one token, else its longest beginning that is one.
        """
        if await self.count(answer) == 1:
            return answer
        if self.route is None:
            return None
        own = await self.ids(answer)
        for end in range(len(answer) - 1, 0, -1):
            if await self.ids(answer[:end]) == (own or [])[:1]:
                return answer[:end]
        return None


async def usage_of_prompt(
    client: EndpointClient, prompt: str | Sequence[dict[str, str]], *, chat: bool
) -> int:
    """Prompt tokens of a call that generates one token, by the server's `usage`.

    Raises:
        EndpointTruncates: `usage` says nothing.
        EndpointIncapable: neither way of asking works.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    asked: tuple[tuple[str, dict[str, Any]], ...] = (("/completions", {"prompt": prompt}),)
    if chat:
        asked = (
            ("/chat/completions", {"messages": messages}),
            ("/messages", {"messages": messages}),
        )
    refusal = EndpointIncapable("no way to count tokens")
    for path, body in asked:
        try:
            answer = await client.post(
                path, {**body, "max_tokens": 1}, lambda _: None, reader="usage"
            )
        except EndpointIncapable as error:
            refusal = error
            continue
        if answer.usage.prompt_tokens is None:
            raise EndpointTruncates(
                "the server does not say how many tokens it read (`usage.prompt_tokens`), "
                "so a prompt that was cut could not be told from a whole one",
                field="model",
            )
        return answer.usage.prompt_tokens
    raise refusal
