"""Reads answers' probabilities from weights in this process, exactly.

Questions about one context are read together: the context once, with its keys and values kept, then
all that stands behind it in one more pass. Whether that gives what reading each prompt alone gives
is tried on the first such context, for every model; otherwise each prompt is read alone. Rows of
unequal length are filled up on the right, where no position that is read can see it.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lacuna.contract.errors import NotFinite
from workers.faults import is_out_of_memory
from workers.influence import batching
from workers.instrument import model_pass
from workers.instrument.model_pass import interruptible, no_check, throttled
from workers.models.loaded import LoadedModel
from workers.recall.encoding import Encoding, Row
from workers.recall.reader import Check, OnProgress, Question, Reading, Usage

F64 = NDArray[np.float64]

_LEAST_SHARED = 32
"""Tokens that a shared context must have to be worth a pass of its own."""
_ALIKE = 0.8
"""Rows whose lengths differ by more than this ratio are not read together."""
_AGREES = {torch.float64: 1e-6, torch.float32: 1e-3}
_AGREES_HALF = 0.1
"""Nats by which a kept context may move an answer; half precision rounds by some hundredths."""


class WeightsReader:
    """Answers questions with a loaded model. See `workers.recall.reader.Reader`.

    Args:
        loaded: a model with its tokenizer.
        rung: `answer` reads log-probabilities; `text` lets the model write and compares.
        chat: use the tokenizer's chat template where it has one.
        batch_size: prompts at once; 0 chooses by length and free memory.
        field: of the request, which errors name.

    Raises:
        DocumentsUnusable: the model has no tokenizer.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        rung: Literal["answer", "text"] = "answer",
        chat: bool = True,
        batch_size: int = 0,
        field: str = "recall",
    ) -> None:
        self.loaded, self.rung, self.batch_size = loaded, rung, batch_size
        self.usage = Usage()
        self._encoding = Encoding(loaded, chat=chat, field=field)
        self.form, self.preamble = self._encoding.form, self._encoding.preamble
        self._tokenizer: Any = loaded.tokenizer
        known = inspect.signature(loaded.model.forward).parameters
        # The name of keys and values that are kept: transformers renamed it within version 5.
        self._cache = next((name for name in ("cache", "past_key_values") if name in known), "")
        # Whether contexts can be kept; None: not tried yet.
        self._shares: bool | None = None if self._cache else False

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without special tokens."""
        return [self._encoding.count(text) for text in texts]

    def read(
        self,
        questions: Sequence[Question],
        *,
        on_progress: OnProgress | None = None,
        check: Check | None = None,
    ) -> list[Reading | None]:
        """Answer all questions, in their order.

        At rung `answer` the log-probability is the sum over the answer's tokens, in float64. The
        answer is cut into tokens together with its prompt, and counts from the first token that the
        prompt alone does not have.

        Raises:
            DocumentsUnusable: a tokenizer that cannot write an answer or tell it from others, or
                reads more than 1% of the prompts as unknown; names the share.
            TooLong: a prompt is longer than the model reads; names both numbers.
            NotFinite: a log-probability is NaN or infinite; names the dtype.
            OutOfMemory: one prompt does not fit.
        """
        began = time.monotonic()
        if not questions:
            return []
        rows = self.rows(questions)
        done = itertools.count(1)

        def report(count: int) -> None:
            for _ in range(count):
                so_far = next(done)
            if on_progress is not None:
                on_progress(so_far, len(rows))

        with interruptible(self.loaded.model, throttled(check or no_check)), torch.no_grad():
            if self.rung == "text":
                found = self._written(questions, rows, report)
            else:
                found = self._scored(rows, report)
        self.usage.seconds += time.monotonic() - began
        return list(found)

    def rows(self, questions: Sequence[Question]) -> list[Row]:
        """Questions in tokens; whatever `read` refuses before it reads is refused here."""
        found = [self._encoding.row(question) for question in questions]
        self._encoding.check(questions, found)
        return found

    # Log-probabilities

    def _scored(self, rows: Sequence[Row], report: Callable[[int], None]) -> list[Reading]:
        found = np.zeros(len(rows))
        for blocks in _alike(rows, list(_blocks(rows))):
            self._read_blocks(rows, blocks, found, report)
        if not np.isfinite(found).all():
            raise NotFinite(
                f"log-probabilities of {self.loaded.id} are NaN or infinite in {self.loaded.dtype}"
            )
        logs = np.minimum(found, 0.0)  # rounding
        return [
            Reading(float(np.exp(log)), float(log), row.prompt)
            for log, row in zip(logs, rows, strict=True)
        ]

    def _read_blocks(
        self,
        rows: Sequence[Row],
        blocks: list[list[int]],
        found: F64,
        report: Callable[[int], None],
    ) -> None:
        """Blocks of questions that share contexts, of about one length and equally many each."""
        shared = min(_shared([rows[i] for i in block]) for block in blocks)
        together = len(blocks[0]) > 1 and self._can_share(rows, blocks[0])
        if not together:
            blocks, shared = [[i] for block in blocks for i in block], 0
        padded = _padded([rows[block[0]].ids[:-1] for block in blocks])

        def one_batch(first: int, ids: Tensor) -> None:
            here = blocks[first : first + len(ids)]
            asked = [rows[i] for block in here for i in block]
            logs = self._behind(asked, ids[:, :shared], shared) if shared else self._alone(asked)
            order = [i for block in here for i in block]
            found[order] = logs
            report(len(order))

        keep = max(len(rows[i].ids) - max(shared, 1) for block in blocks for i in block)
        how = batching.plan_batches(
            self.loaded, padded, self.batch_size, gradients=False, keep=keep * len(blocks[0])
        )
        batching.run_batches(self.loaded, padded, how, one_batch)

    def _alone(self, rows: Sequence[Row]) -> list[float]:
        """Log-probability of each row's answer, read from its first token on."""
        ids = _padded([row.ids[:-1] for row in rows]).to(self.loaded.device)
        keep = ids.shape[1] + 1 - min(row.prompt for row in rows)
        with model_pass.pass_hooks(self.loaded.model, keep=keep, gradients=False) as seen:
            logits = model_pass.last_logits(self.loaded.model, ids, seen, keep=keep)
        self._spent(rows, 0)
        return _sums(logits, rows, ids.shape[1] - keep)

    def _behind(self, rows: Sequence[Row], context: Tensor, shared: int) -> list[float]:
        """The same, with the first `shared` tokens read once for all rows of a context."""
        model: Any = self.loaded.model
        each = len(rows) // len(context)
        kept = self._context(context)
        kept.batch_repeat_interleave(each)
        ids = _padded([row.ids[shared:-1] for row in rows]).to(self.loaded.device)
        keep = shared + ids.shape[1] + 1 - min(row.prompt for row in rows)
        with model_pass.pass_hooks(model, keep=keep, gradients=False):
            out = model(input_ids=ids, use_cache=True, **{self._cache: kept})
        logits = model_pass.at_least_float32(out.logits[:, -keep:])
        self._spent(rows, len(context) * (each - 1) * shared)
        return _sums(logits, rows, shared + ids.shape[1] - keep)

    def _context(self, ids: Tensor) -> Any:
        """Keys and values of contexts [B, shared]."""
        model: Any = self.loaded.model
        with model_pass.pass_hooks(model, keep=1, gradients=False):
            out = model(input_ids=ids.to(self.loaded.device), use_cache=True)
        return getattr(out, self._cache)

    def _can_share(self, rows: Sequence[Row], block: Sequence[int]) -> bool:
        """Whether a kept context gives what reading the prompts alone gives; tried once."""
        if self._shares is None:
            asked = [rows[i] for i in block]
            shared = _shared(asked)
            context = torch.tensor([asked[0].ids[:shared]], device=self.loaded.device)
            try:
                kept = self._behind(asked, context, shared)
            except (AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
                if is_out_of_memory(error):
                    return False
                self._shares = False  # a cache that cannot be repeated, or is of another kind
                return False
            alone = [self._alone([row])[0] for row in (asked[0], asked[-1])]
            apart = np.abs(np.array([kept[0], kept[-1]]) - alone).max()
            self._shares = bool(apart <= _AGREES.get(self.loaded.dtype, _AGREES_HALF))
        return self._shares

    # Texts

    def _written(
        self, questions: Sequence[Question], rows: Sequence[Row], report: Callable[[int], None]
    ) -> list[Reading]:
        found = []
        for block in _blocks(rows):
            kept, shared = None, 0
            if len(block) > 1 and self._can_share(rows, block):
                shared = _shared([rows[i] for i in block])
                kept = self._context(torch.tensor([rows[block[0]].ids[:shared]]))
            for i in block:
                question, prompt = questions[i], rows[i].ids[: rows[i].prompt]
                said = self._greedy(prompt, question, copy.deepcopy(kept), shared)
                right = float(question.right(said))
                found.append(Reading(right, None, len(prompt), said=said))
                self._spent([rows[i]], shared if i != block[0] else 0)
                report(1)
        return found

    def _greedy(self, prompt: list[int], question: Question, kept: Any, shared: int) -> str:
        """The likeliest next token again and again, until the text is right, ends, or is long.

        `kept`: keys and values of the prompt's first `shared` tokens, which are not read again.
        """
        model: Any = self.loaded.model
        ends = _ends(model, self._tokenizer)
        tokens: list[int] = []
        ids = torch.tensor([prompt[shared:]], device=self.loaded.device)
        text = ""
        while len(tokens) < question.max_tokens:
            # A model that keeps nothing reads all of it again for every token.
            options = {self._cache: kept, "use_cache": True} if self._cache else {}
            with model_pass.pass_hooks(model, keep=1, gradients=False):
                out = model(input_ids=ids, **options)
            token = int(out.logits[0, -1].argmax())
            kept = getattr(out, self._cache, None) if self._cache else None
            if token in ends:
                break
            tokens.append(token)
            text = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
            if question.scoring == "contains" and question.right(text):
                break  # what follows cannot make it wrong
            step = [token] if kept is not None else [*prompt, *tokens]
            ids = torch.tensor([step], device=self.loaded.device)
        return text

    def _spent(self, rows: Sequence[Row], cached: int) -> None:
        self.usage.calls += 1
        self.usage.prompt_tokens += sum(row.prompt for row in rows)
        self.usage.cached_tokens += cached


def _ends(model: Any, tokenizer: Any) -> set[int]:
    """Tokens after which nothing is read."""
    settings = getattr(model, "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    several = named if isinstance(named, list) else [named]
    return {int(t) for t in (*several, tokenizer.eos_token_id) if t is not None}


def _shared(rows: Sequence[Row]) -> int:
    """Tokens that all rows begin with; every row keeps one of its prompt behind them."""
    first, last = min(row.ids for row in rows), max(row.ids for row in rows)
    differ = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return min(next(differ, min(len(first), len(last))), *(row.prompt - 1 for row in rows))


def _blocks(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Numbers of consecutive rows that share most of their tokens."""
    block: list[int] = []
    for i, row in enumerate(rows):
        if block:
            shared = _shared([rows[block[0]], row])
            if shared < max(_LEAST_SHARED, len(row.ids) // 2):
                yield block
                block = []
        block.append(i)
    if block:
        yield block


def _alike(rows: Sequence[Row], blocks: list[list[int]]) -> Iterator[list[list[int]]]:
    """Blocks that can be read together: equally many questions, of about one length."""

    def size(block: Sequence[int]) -> tuple[int, int]:
        return len(block), len(rows[block[0]].ids)

    batch: list[list[int]] = []
    for block in sorted(blocks, key=size):
        if batch:
            (many, short), (count, length) = size(batch[0]), size(block)
            if many != count or short < _ALIKE * length:
                yield batch
                batch = []
        batch.append(block)
    if batch:
        yield batch


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows [B, longest], filled up on the right with what stands last."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows])


def _sums(logits: Tensor, rows: Sequence[Row], offset: int) -> list[float]:
    """Log-probability of each answer; `logits` [B, positions, vocabulary] from `offset` on."""
    found = []
    for scores, row in zip(logits, rows, strict=True):
        # The logits at position p are about token p + 1.
        said = scores[row.prompt - 1 - offset : len(row.ids) - 1 - offset].log_softmax(dim=-1)
        wanted = torch.tensor(row.ids[row.prompt :], device=scores.device)
        found.append(float(said.gather(-1, wanted[:, None]).double().sum()))
    return found
