"""The ways of reading an answer's probability from a server, one function each.

| way | request | served by |
|---|---|---|
| `completions.echo` | `echo`, `logprobs` | vLLM, SGLang |
| `completions.prompt_logprobs` | `prompt_logprobs` | vLLM |
| `generate.return_logprob` | `/generate`, `return_logprob`, `logprob_start_len` | SGLang |
| `generate.decoder_input_details` | `/generate`, `decoder_input_details` | TGI |
| `*.grammar` | a grammar that admits one answer, `logit_bias` on its own tokens | llama.cpp |
| `*.logit_bias` | `logit_bias` on one token after the other | vLLM, llama.cpp |
| `chat.prompt_logprobs` | the last message continued, `prompt_logprobs` | vLLM |
| `*.top` | the most probable first tokens | most |
| `*.text` | what the model writes | all |

The last column tells what to expect and is never used: `ladder` tries every way, and `checks`
decides. One token is generated where none is needed, since 0 means "no limit" to some servers.
Log-probabilities are asked at temperature 1 and top_p 1, so that a server which reports them after
sampling reports the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import exp
from typing import Any

from lacuna.contract.endpoints import Form, Rung
from lacuna.contract.errors import (
    EndpointIncapable,
    EndpointTruncates,
)
from workers.endpoints.client import Answer, EndpointClient
from workers.endpoints.counting import Counter
from workers.endpoints.shapes import (
    choice_of,
    echoed_rows,
    first_list,
    from_end,
    from_start,
    generated_rows,
    prompt_rows,
    sglang_rows,
    tgi_rows,
)
from workers.recall.reader import Question, Reading

BARE = {"temperature": 1, "top_p": 1}
GREEDY = {"temperature": 0, "seed": 0}
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
FORCE = 100
"""The largest bias that servers take."""


@dataclass
class Session:
    """What a way of reading works with."""

    client: EndpointClient
    counter: Counter
    form: Form
    top: int = 20
    """Length of the list of first tokens."""
    repeat: int = 0
    """Which repetition of the same questions this is."""

    async def ask(
        self,
        path: str,
        body: dict[str, Any],
        pick: Callable[[Any], Any],
        way: str,
        question: Question,
        *,
        root: bool = False,
        generates: int = 1,
    ) -> Answer:
        """A call for one question."""
        return await self.client.post(
            path,
            body,
            pick,
            reader=way,
            root=root,
            expected_tokens=question.expected_tokens,
            generates=generates,
            repeat=self.repeat,
        )


Read = Callable[[Session, Question], Awaitable[Reading]]


@dataclass(frozen=True)
class Way:
    """One way of reading: its name, how much it tells, and the forms of prompts it takes."""

    name: str
    rung: Rung
    forms: frozenset[Form]
    read: Read


def plain(question: Question, more: str = "") -> str:
    """The text of a plain prompt.

    Raises:
        EndpointIncapable: the prompt is a conversation.
    """
    if not isinstance(question.prompt, str):
        raise EndpointIncapable("a plain prompt is one text")
    return question.prompt + more


def messages(question: Question, more: str = "") -> list[dict[str, str]]:
    """The messages of a conversation, the last one with `more` at its end.

    Raises:
        EndpointIncapable: the prompt is one text.
    """
    if isinstance(question.prompt, str) or not question.prompt:
        raise EndpointIncapable("a chat prompt is a list of messages")
    found = [{"role": m.role, "content": m.content} for m in question.prompt]
    found[-1]["content"] += more
    return found


def prompt_body(session: Session, question: Question, more: str = "") -> tuple[str, dict[str, Any]]:
    """Route and body of a prompt in the session's form; `more` begins the model's answer."""
    if session.form == "plain":
        return "/completions", {"prompt": plain(question, more)}
    body: dict[str, Any] = {"messages": messages(question)}
    if session.form == "continued":
        body = {"messages": messages(question, more), **CONTINUE}
    elif more:
        raise EndpointIncapable("a reply that was begun is not continued")
    return "/chat/completions", body


def whole(question: Question, prompt_tokens: int | None, answer_tokens: int = 0) -> int:
    """Tokens of the prompt, once it is sure that the server read all of it.

    Args:
        question: `expected_tokens` is compared; a hundredth, or 4 tokens, may be missing, since
            tokens join where counted parts meet.
        prompt_tokens: by the server.
        answer_tokens: of these, in the answer that was sent along.

    Raises:
        EndpointTruncates: fewer than expected, or unknown.
    """
    if prompt_tokens is None:
        raise EndpointTruncates(
            "the server does not say how many tokens it read: a cut prompt would look whole",
            field="model",
        )
    found = prompt_tokens - answer_tokens
    expected = question.expected_tokens
    if found < expected - max(4, expected // 100):
        raise EndpointTruncates(
            f"the server read {found:,} tokens of a prompt of at least {expected:,}: "
            "it cuts prompts, and what it cuts off would look like a dead zone",
            field="sequence_length",
        )
    return found


def _scored(question: Question, answer: Answer, *, sent_along: bool) -> Reading:
    found = answer.picked
    tokens = int(found["tokens"]) if sent_along else 0
    nats = float(found["nats"])
    return Reading(exp(nats), nats, whole(question, answer.usage.prompt_tokens, tokens))


async def echo(session: Session, question: Question) -> Reading:
    """Rung `answer`: the answer is sent as part of the prompt and echoed."""
    sent = plain(question, question.answer)

    def pick(found: Any) -> Any:
        generated = (found.get("usage") or {}).get("completion_tokens")
        return from_end(echoed_rows(found, sent, generated), question.answer)

    body = {"prompt": sent, "max_tokens": 1, "echo": True, "logprobs": 1, **BARE}
    answer = await session.ask("/completions", body, pick, "completions.echo", question)
    return _scored(question, answer, sent_along=True)


async def prompt_logprobs(session: Session, question: Question) -> Reading:
    """Rung `answer`: log-probabilities of the prompt, the answer at its end."""
    path, body = prompt_body(session, question, question.answer)

    def pick(found: Any) -> Any:
        place = choice_of(found) if session.form == "plain" else found
        return from_end(prompt_rows(place.get("prompt_logprobs")), question.answer)

    body |= {"max_tokens": 1, "prompt_logprobs": 0, **BARE}
    answer = await session.ask(path, body, pick, "prompt_logprobs", question)
    return _scored(question, answer, sent_along=True)


async def sglang(session: Session, question: Question) -> Reading:
    """Rung `answer`: SGLang's own route, which needs to compute only the prompt's end."""
    body = {
        "text": plain(question, question.answer),
        "sampling_params": {"max_new_tokens": 1, **BARE},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": max(0, question.expected_tokens - 32),
    }

    def pick(found: Any) -> Any:
        return from_end(sglang_rows(found), question.answer)

    answer = await session.ask(
        "/generate", body, pick, "generate.return_logprob", question, root=True
    )
    return _scored(question, answer, sent_along=True)


async def tgi(session: Session, question: Question) -> Reading:
    """Rung `answer`: TGI's own route, with the details of the prompt."""
    parameters = {"max_new_tokens": 1, "details": True, "decoder_input_details": True}
    body = {"inputs": plain(question, question.answer), "parameters": parameters}

    def pick(found: Any) -> Any:
        return from_end(tgi_rows(found), question.answer)

    answer = await session.ask(
        "/generate", body, pick, "generate.decoder_input_details", question, root=True
    )
    return _scored(question, answer, sent_along=True)


async def grammar(session: Session, question: Question) -> Reading:
    """Rung `answer`: a grammar admits the answer alone, a bias prefers its own tokens.

    Without the bias a grammar lets through other tokens that spell the same (" " and "April").
    """
    own = await session.counter.ids(question.answer)
    tokens = len(own) if own is not None else await session.counter.count(question.answer)
    path, body = prompt_body(session, question)
    body |= {"grammar": f"root ::= {json.dumps(question.answer)}", "max_tokens": tokens, **BARE}
    body |= {"logprobs": 1} if session.form == "plain" else {"logprobs": True, "top_logprobs": 1}
    if own is not None:
        body["logit_bias"] = {str(token): FORCE for token in own}

    def pick(found: Any) -> Any:
        return from_start(generated_rows(choice_of(found)), question.answer, tokens)

    answer = await session.ask(path, body, pick, "grammar", question, generates=tokens)
    return _scored(question, answer, sent_along=False)


async def logit_bias(session: Session, question: Question) -> Reading:
    """Rung `answer`: one call a token, which a bias forces; its unbiased probability is read."""
    own = await session.counter.ids(question.answer)
    if own is None:
        raise EndpointIncapable("the server has no route that tells the answer's tokens")
    total, so_far, read = 0.0, "", 0
    for place, token in enumerate(own):
        path, body = prompt_body(session, question, so_far)
        body |= {"max_tokens": 1, "logit_bias": {str(token): FORCE}, **BARE}
        plainly = session.form == "plain"
        body |= {"logprobs": 1} if plainly else {"logprobs": True, "top_logprobs": 1}
        answer = await session.ask(
            path, body, lambda found: list(generated_rows(choice_of(found))[0]), "bias", question
        )
        text, nats = answer.picked
        if not text or not question.answer.startswith(so_far + text):
            raise EndpointIncapable("`logit_bias` is ignored: other tokens than the answer's came")
        if nats is None:
            raise EndpointIncapable("a token of the answer has no log-probability (null or -9999)")
        total, so_far = total + nats, so_far + text
        if place == 0:
            read = whole(question, answer.usage.prompt_tokens)
    if so_far != question.answer:
        raise EndpointIncapable("the forced tokens do not spell the answer")
    return Reading(exp(total), total, read)


async def top_list(session: Session, question: Question) -> Answer:
    """The most probable first tokens, `picked` as [token, nats], best first."""
    path, body = prompt_body(session, question)
    most = session.top
    body |= {"max_tokens": 1, **BARE}
    plainly = session.form == "plain"
    body |= {"logprobs": most} if plainly else {"logprobs": True, "top_logprobs": most}

    def pick(found: Any) -> Any:  # a sampled token beyond the list may come on top of it
        return first_list(choice_of(found))[:most]

    return await session.ask(path, body, pick, "top", question)


async def first_token(session: Session, question: Question) -> Reading:
    """Rung `first_token`: the answer's first token in the list of the most probable ones."""
    piece = await session.counter.first_piece(question.answer)
    if piece is None:
        raise EndpointIncapable("the answer has several tokens, and which is its first is unknown")
    if session.counter.route is not None:
        for other in question.alternatives:
            if other != question.answer and await session.counter.first_piece(other) == piece:
                raise EndpointIncapable("another answer begins with the same token")
    answer = await top_list(session, question)
    read = whole(question, answer.usage.prompt_tokens)
    listed = {str(token): float(value) for token, value in answer.picked}
    value = listed.get(piece)
    if value is None:
        least = min(listed.values())
        return Reading(exp(least), least, read, censored=True)
    return Reading(exp(value), value, read)


def _written(found: Any, *, chat: bool) -> str:
    choice = choice_of(found)
    if choice.get("finish_reason") == "content_filter":
        raise EndpointIncapable("the server's filter held the answer back")
    said = (choice.get("message") or {}).get("content") if chat else choice.get("text")
    if not isinstance(said, str):
        raise EndpointIncapable("the server writes no text")
    return said


async def written(session: Session, question: Question) -> tuple[str, Answer]:
    """What the model writes at temperature 0, without a beginning that the server repeats."""
    path, body = prompt_body(session, question)
    body |= {"max_tokens": question.max_tokens, **GREEDY}
    chat = session.form != "plain"
    answer = await session.ask(
        path,
        body,
        lambda found: _written(found, chat=chat),
        "text",
        question,
        generates=question.max_tokens,
    )
    said = str(answer.picked)
    if session.form == "continued":  # llama.cpp repeats what it was to continue
        said = said.removeprefix(messages(question)[-1]["content"])
    return said, answer


async def written_natively(session: Session, question: Question) -> tuple[str, Answer]:
    """The same by Anthropic's `/messages`, where system messages stand apart."""
    turns = messages(question)
    system = "\n\n".join(m["content"] for m in turns if m["role"] == "system")
    body: dict[str, Any] = {
        "messages": [m for m in turns if m["role"] != "system"],
        "max_tokens": question.max_tokens,
        "temperature": 0,
    }
    if system:
        body["system"] = system

    def pick(found: Any) -> Any:
        parts = [part["text"] for part in found["content"] if part.get("type") == "text"]
        if found.get("stop_reason") == "refusal" or not parts:
            raise EndpointIncapable("the server writes no text")
        return "".join(parts)

    answer = await session.ask(
        "/messages", body, pick, "text", question, generates=question.max_tokens
    )
    return str(answer.picked), answer


def _judged(question: Question, said: str, answer: Answer) -> Reading:
    read = whole(question, answer.usage.prompt_tokens)
    return Reading(1.0 if question.right(said) else 0.0, None, read, said=said)


async def text(session: Session, question: Question) -> Reading:
    """Rung `text`: whether what the model writes is right."""
    return _judged(question, *await written(session, question))


async def native_text(session: Session, question: Question) -> Reading:
    """Rung `text` by `/messages`."""
    return _judged(question, *await written_natively(session, question))


_PLAIN: frozenset[Form] = frozenset({"plain"})
_CONTINUED: frozenset[Form] = frozenset({"continued"})
_CHAT: frozenset[Form] = frozenset({"chat", "continued"})

WAYS: tuple[Way, ...] = (
    Way("completions.echo", "answer", _PLAIN, echo),
    Way("completions.prompt_logprobs", "answer", _PLAIN, prompt_logprobs),
    Way("generate.return_logprob", "answer", _PLAIN, sglang),
    Way("generate.decoder_input_details", "answer", _PLAIN, tgi),
    Way("completions.grammar", "answer", _PLAIN, grammar),
    Way("completions.logit_bias", "answer", _PLAIN, logit_bias),
    Way("chat.prompt_logprobs", "answer", _CONTINUED, prompt_logprobs),
    Way("chat.grammar", "answer", _CHAT, grammar),
    Way("chat.logit_bias", "answer", _CHAT, logit_bias),
    Way("completions.top", "first_token", _PLAIN, first_token),
    Way("chat.top", "first_token", _CHAT, first_token),
    Way("completions.text", "text", _PLAIN, text),
    Way("chat.text", "text", _CHAT, text),
    Way("messages.text", "text", _CHAT, native_text),
)
"""All ways, best first."""


def way_named(name: str) -> Way:
    """The way of that name.

    Raises:
        EndpointIncapable: no such way.
    """
    for way in WAYS:
        if way.name == name:
            return way
    raise EndpointIncapable(f"no way of reading is named {name[:64]!r}")
