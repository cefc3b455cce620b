"""The dialects: which routes a server has, which fields it reads, and in which shape it answers."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.workers.endpoints.fake_model import split
from tests.workers.endpoints.fake_server import (
    SECRET_PATH,
    Declined,
    FakeServer,
    Generation,
    Json,
)


def _old_shape(made: Generation, listed: int) -> Json:
    """`logprobs` of completions."""
    return {
        "tokens": [token for token, _, _ in made.rows],
        "token_logprobs": [nats for _, nats, _ in made.rows],
        "top_logprobs": [dict(top) if listed else None for _, _, top in made.rows],
        "text_offset": [0 for _ in made.rows],
    }


def _new_shape(made: Generation) -> Json:
    """`logprobs` of chats."""
    return {
        "content": [
            {
                "token": token,
                "logprob": nats,
                "bytes": list(token.encode()),
                "top_logprobs": [{"token": t, "logprob": v, "bytes": []} for t, v in top],
            }
            for token, nats, top in made.rows
        ]
    }


class Completions(FakeServer):
    """`/v1/completions`."""

    def do_completions(self, body: Json) -> Json:
        listed = self._listed(body)
        made = self.complete(body, split(body["prompt"]), listed)
        choice: Json = {"index": 0, "text": "".join(made.tokens), "finish_reason": "length"}
        if listed:
            choice["logprobs"] = self.shape(made, listed)
        self.more(body, made, choice)
        return {**self.named(body["model"]), "choices": [choice], **self.usage(made)}

    def _listed(self, body: Json) -> int:
        listed = int(body.get("logprobs") or 0)
        if listed > self.most_listed:
            raise Declined(400)
        return listed

    def shape(self, made: Generation, listed: int) -> Json:
        return _old_shape(made, listed)

    def complete(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self.generate(prompt, self.count_of(body), listed)

    def more(self, body: Json, made: Generation, choice: Json) -> None:
        """Fields of this dialect's own."""

    def echo(self, body: Json, made: Generation, choice: Json) -> None:
        """The prompt in front of what was generated, in text and numbers."""
        if not body.get("echo") or self.faults.echo_ignored:
            return
        choice["text"] = body["prompt"] + choice["text"]
        if body.get("logprobs"):
            logs = choice["logprobs"]
            logs["tokens"] = [*made.prompt, *logs["tokens"]]
            logs["token_logprobs"] = [*self.prompt_nats(made.prompt), *logs["token_logprobs"]]


class Chat(FakeServer):
    """`/v1/chat/completions`."""

    continues = "never"  # "flag", "always"
    repeats = False

    def do_chat_completions(self, body: Json) -> Json:
        listed = int(body.get("top_logprobs") or 0)
        if listed > self.most_listed:
            raise Declined(400)
        begun = body["messages"][-1]["role"] == "assistant" and (
            self.continues == "always"
            or (self.continues == "flag" and bool(body.get("continue_final_message")))
        )
        prompt = self.chat_tokens(body["messages"], continued=begun)
        made = self.chat(body, prompt, listed)
        said = "".join(made.tokens)
        if begun and self.repeats:
            said = body["messages"][-1]["content"] + said
        message = {"role": "assistant", "content": said}
        choice: Json = {"index": 0, "message": message, "finish_reason": "length"}
        if body.get("logprobs"):
            choice["logprobs"] = _new_shape(made)
        found = {**self.named(body["model"]), "choices": [choice], **self.usage(made)}
        return {**found, **self.more_chat(body, made)}

    def chat(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self.generate(prompt, self.count_of(body), listed)

    def more_chat(self, body: Json, made: Generation) -> Json:
        return {}


class Vllm(Completions, Chat):
    """Echo, prompt_logprobs, continued messages, bias; the grammar is ignored."""

    continues = "flag"

    def do_tokenize(self, body: Json) -> Json:
        tokens = split(body["prompt"])
        extra = list(self.bos) if body.get("add_special_tokens", True) else []
        ids = self.model.ids([*extra, *tokens])
        return {"count": len(ids), "max_model_len": self.context, "tokens": ids}

    def complete(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self.generate(prompt, self.count_of(body), listed, body.get("logit_bias"))

    def chat(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self.generate(prompt, self.count_of(body), listed, body.get("logit_bias"))

    def _prompt_logprobs(self, made: Generation) -> list[Any]:
        ids, nats = self.model.ids(made.prompt), self.prompt_nats(made.prompt)
        return [
            None if place == 0 else {str(i): {"logprob": v, "rank": 1, "decoded_token": t}}
            for place, (i, v, t) in enumerate(zip(ids, nats, made.prompt, strict=True))
        ]

    def more(self, body: Json, made: Generation, choice: Json) -> None:
        self.echo(body, made, choice)
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(made)

    def more_chat(self, body: Json, made: Generation) -> Json:
        if body.get("prompt_logprobs") is None:
            return {}
        return {"prompt_logprobs": self._prompt_logprobs(made)}


class LlamaCpp(Completions, Chat):
    """Grammar and bias; echo is ignored, the begun reply is repeated, the model is a path."""

    continues = "always"
    repeats = True
    most_listed = 100_000

    def named(self, asked: str) -> Json:
        found = super().named(asked)
        return {**found, "model": SECRET_PATH if found["model"] == asked else found["model"]}

    def do_tokenize(self, body: Json) -> Json:
        return {"tokens": self.model.ids(split(body.get("content", "")))}

    def shape(self, made: Generation, listed: int) -> Json:
        return _new_shape(made)

    def _ruled(self, body: Json, prompt: list[str], listed: int) -> Generation:
        count, bias = self.count_of(body), body.get("logit_bias")
        if "grammar" not in body:
            return self.generate(prompt, count, listed, bias)
        answer = split(json.loads(body["grammar"].removeprefix("root ::= ")))
        if not bias:  # the grammar's text in other tokens
            answer = [part for token in answer for part in re.findall(r"\s|\S+", token)]
        return self.generate(prompt, count, listed, forced=answer)

    def complete(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self._ruled(body, prompt, listed)

    def chat(self, body: Json, prompt: list[str], listed: int) -> Generation:
        return self._ruled(body, prompt, listed)


class LlamaCppPython(Completions, Chat):
    """Echo off by one; 0 tokens mean no limit; its tokenizer adds a beginning of text."""

    bos = ("<s>",)
    most_listed = 1000

    def do_extras_tokenize(self, body: Json) -> Json:
        return {"tokens": self.model.ids([*self.bos, *split(body["input"])])}

    def more(self, body: Json, made: Generation, choice: Json) -> None:
        self.faults.off_by_one = True
        if body.get("echo"):
            self.echo(body, made, choice)


class SgLang(Completions, Chat):
    """`/generate` with log-probabilities from a place on."""

    continues = "flag"

    def do_tokenize(self, body: Json) -> Json:
        ids = self.model.ids(split(body["prompt"]))
        return {"tokens": ids, "count": len(ids), "max_model_len": self.context}

    def do_generate(self, body: Json) -> Json:
        if "text" not in body:
            raise Declined(400)
        made = self.generate(split(body["text"]), body["sampling_params"]["max_new_tokens"])
        meta: Json = {
            "id": "x",
            "finish_reason": {"type": "length", "length": 1},
            "completion_tokens": len(made.tokens),
            "cached_tokens": 0,
        }
        if "prompt_tokens" in (used := self.usage(made).get("usage", {})):
            meta["prompt_tokens"] = used["prompt_tokens"]
        if body.get("return_logprob") and not self.faults.echo_ignored:
            start = body.get("logprob_start_len", -1)
            ids, nats = self.model.ids(made.prompt), self.prompt_nats(made.prompt)
            rows = [
                [v, i, t if body.get("return_text_in_logprobs") else None]
                for v, i, t in zip(nats, ids, made.prompt, strict=True)
            ][start:]
            meta["input_token_logprobs"] = [[None, *rows[0][1:]], *rows[1:]]
        return {"text": "".join(made.tokens), "meta_info": meta}


class Tgi(Completions, Chat):
    """`/generate` with details of the prompt; five listed tokens in chats, none elsewhere."""

    bos = ("<s>",)
    most_listed = 5

    def do_tokenize(self, body: Json) -> Any:
        if "inputs" not in body:
            raise Declined(422, {"error": "missing field `inputs`", "error_type": "validation"})
        tokens = [*self.bos, *split(body["inputs"])]
        ids = self.model.ids(tokens)
        return [{"id": i, "text": t} for i, t in zip(ids, tokens, strict=True)]

    def _listed(self, body: Json) -> int:
        return 0

    def do_generate(self, body: Json) -> Json:
        if "inputs" not in body:
            raise Declined(422, {"error": "missing field `inputs`", "error_type": "validation"})
        parameters = body["parameters"]
        made = self.generate(split(body["inputs"]), parameters["max_new_tokens"])
        details: Json = {"finish_reason": "length", "generated_tokens": len(made.tokens)}
        details["prefill"] = []
        if parameters.get("decoder_input_details") and not self.faults.echo_ignored:
            ids, nats = self.model.ids(made.prompt), self.prompt_nats(made.prompt)
            details["prefill"] = [
                {"id": i, "text": t, "logprob": v}
                for i, t, v in zip(ids, made.prompt, nats, strict=True)
            ]
        return {"generated_text": "".join(made.tokens), "details": details}


class Ollama(Completions, Chat):
    """Generated tokens only, no tokenizer; a begun reply is continued."""

    continues = "always"

    def _listed(self, body: Json) -> int:
        return 0


class OpenAI(Chat):
    """Chats only; fields that it does not know are refused."""

    fields = frozenset({"model", "messages", "max_tokens", "temperature", "top_p", "seed"}) | {
        "logprobs",
        "top_logprobs",
        "logit_bias",
    }

    def do_chat_completions(self, body: Json) -> Json:
        if strange := set(body) - self.fields:
            message = f"Unrecognized request argument supplied: {sorted(strange)[0]}"
            raise Declined(400, {"error": {"message": message, "type": "invalid_request_error"}})
        return super().do_chat_completions(body)

    def named(self, asked: str) -> Json:
        found = super().named(asked)
        return {**found, "system_fingerprint": f"fp_{self.requests % 3}"}  # several backends


class NewerOpenAI(OpenAI):
    """The same interface for newer models: `max_tokens` has another name."""

    fields = OpenAI.fields - {"max_tokens"} | {"max_completion_tokens"}

    def do_chat_completions(self, body: Json) -> Json:
        if "max_tokens" in body:
            message = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            raise Declined(400, {"error": {"message": message, "code": "unsupported_parameter"}})
        return super().do_chat_completions(body)

    def count_of(self, body: Json, least: int = 1) -> int:
        return super().count_of({**body, "max_tokens": body["max_completion_tokens"]}, least)


class Anthropic(FakeServer):
    """`/v1/messages`, text only."""

    key_header = "x-api-key"

    def do_messages(self, body: Json) -> Json:
        made = self.generate(
            self.chat_tokens(body["messages"], continued=False), self.count_of(body)
        )
        used = self.usage(made).get("usage")
        answer = {
            "type": "message",
            "model": self.named(body["model"])["model"],
            "content": [{"type": "text", "text": "".join(made.tokens)}],
            "stop_reason": "max_tokens",
        }
        if used:
            tokens = (used["prompt_tokens"], used["completion_tokens"])
            answer["usage"] = dict(zip(("input_tokens", "output_tokens"), tokens, strict=True))
        return answer


DIALECTS: dict[str, type[FakeServer]] = {
    "vllm": Vllm,
    "llama.cpp": LlamaCpp,
    "llama-cpp-python": LlamaCppPython,
    "sglang": SgLang,
    "tgi": Tgi,
    "ollama": Ollama,
    "openai": OpenAI,
    "anthropic": Anthropic,
}
