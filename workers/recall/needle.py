"""What a model reads for the functional curve: facts at depths of unrelated prose, and questions.

Everything for which a model or a length may be refused is found out here, before anything is
measured.

The functional curve: how well a fact is recalled, by where in the prompt it stood.

A fact ("The access code of the copper lantern is 58213.") is put at each of several depths of
unrelated prose, the question for it ends the prompt, and the value's log-probability is read. This
is the key-value probe of Liu et al. (arXiv 2307.03172) with probabilities in place of right or
wrong answers, so that small models show a curve too. Forward passes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lacuna.contract.errors import DocumentsUnusable, NotFinite
from lacuna.theory.curve import Curve
from workers.documents import check_vocabulary, corpus
from workers.documents.tokens import Policy, encode, policy
from workers.influence import batching
from workers.instrument import model_pass
from workers.instrument.model_pass import Check, interruptible, no_check, throttled
from workers.models.loaded import LoadedModel

F64 = NDArray[np.float64]

_QUALITIES = (
    "copper", "silver", "wooden", "marble", "velvet", "amber", "crimson", "hollow", "frozen",
    "painted", "ancient", "narrow", "golden", "broken", "silent", "striped",
)  # fmt: skip
_THINGS = (
    "lantern", "harbour", "cabinet", "bridge", "violin", "garden", "tower", "anchor", "mirror",
    "ladder", "station", "orchard", "compass", "library", "kettle", "chimney",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """Token ids of one fact's parts.

    Attributes:
        needle: the sentence that states it.
        ending: question and value.
        value: how many tokens at the end of `ending` are the value.
    """

    needle: list[int]
    ending: list[int]
    value: int


@dataclass(frozen=True)
class Plan:
    """Prompts that a model can read, but for the depth of the fact in each.

    Attributes:
        facts: what is to be recalled.
        prose: filler of each fact, as long as its prompt without the fact.
        prefix: special tokens at the start of each prompt.
        length: n, tokens that the model reads.
        depths: k, at least 2.
        seed: of all that was drawn.
    """

    facts: list[Fact]
    prose: list[list[int]]
    prefix: tuple[int, ...]
    length: int
    depths: int
    seed: int

    def prompts(self) -> tuple[Tensor, F64]:
        """Ids [facts * (depths + 1), length + 1] and the facts' offsets [facts, depths].

        Of each fact first the prompts with the fact, then the one without. Every row ends with the
        value's last token, which the model does not read.
        """
        rows, starts = [], np.zeros((len(self.facts), self.depths))
        for number, (fact, prose) in enumerate(zip(self.facts, self.prose, strict=True)):
            rest = len(prose) - len(fact.needle)
            for step in range(self.depths):
                at = round(step * rest / max(1, self.depths - 1))
                body = [*prose[:at], *fact.needle, *prose[at:rest]]
                rows.append([*self.prefix, *body, *fact.ending])
                starts[number, step] = len(self.prefix) + at
            rows.append([*self.prefix, *prose, *fact.ending])
        return torch.tensor(rows, dtype=torch.int64), starts


def plan(loaded: LoadedModel, length: int, *, depths: int, facts: int, seed: int) -> Plan:
    """Draw keys, values and filler for a model.

    Args:
        loaded: a model with its tokenizer.
        length: tokens the model reads, value included but for its last token.
        depths: k, at least 2.
        facts: independent keys and values, each in filler of its own.
        seed: of what is drawn.

    Raises:
        DocumentsUnusable: no tokenizer, unknown tokens, or no room for fact, question and filler.
    """
    if loaded.tokenizer is None:
        raise DocumentsUnusable(
            f"`needle`: {loaded.id} has no tokenizer to write a fact with", field="needle"
        )
    rules = policy(loaded.tokenizer)
    drawn = [_fact(loaded.tokenizer, seed, number) for number in range(facts)]
    _check_room(rules, drawn, length)
    filler = corpus.builtin_tokens(loaded.tokenizer)
    rooms = [length + 1 - len(rules.prefix) - len(fact.ending) for fact in drawn]
    prose = [list(_stretch(filler, room, (seed, i))) for i, room in enumerate(rooms)]
    # No prompt has a token that is in none of these.
    for fact, around in zip(drawn, prose, strict=True):
        ids = torch.tensor([*rules.prefix, *around, *fact.needle, *fact.ending])
        check_vocabulary(ids, loaded, "needle", scored=True)
    return Plan(drawn, prose, tuple(rules.prefix), length, depths, seed)


def _fact(tokenizer: Any, seed: int, number: int) -> Fact:
    draw = np.random.default_rng((seed, number))
    key = f"{draw.choice(_QUALITIES)} {draw.choice(_THINGS)}"
    code = int(draw.integers(10_000, 100_000))
    question = f"\n\nQuestion: What is the access code of the {key}?\nAnswer: The access code is"
    # The value's tokens are those behind the question's own: tokenizers may merge at the border.
    asked, whole = encode(tokenizer, question), encode(tokenizer, f"{question} {code}")
    shared = _common(asked, whole)
    needle = encode(tokenizer, f"\n\nThe access code of the {key} is {code}.\n\n")
    return Fact(needle=needle, ending=whole, value=len(whole) - shared)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _check_room(rules: Policy, drawn: Sequence[Fact], length: int) -> None:
    longest = max(len(fact.needle) + len(fact.ending) for fact in drawn) - 1
    needed = len(rules.prefix) + 2 * longest  # at least as much filler as there is signal
    if length < needed:
        raise DocumentsUnusable(
            f"`sequence_length`: {length} tokens have no room for a fact, its question and filler; "
            f"the needle needs {needed}",
            field="sequence_length",
        )


def _stretch(filler: Sequence[int], room: int, key: tuple[int, int]) -> Iterator[int]:
    """`room` tokens of the corpus from a random place on, around its end if need be."""
    start = int(np.random.default_rng((*key, 1)).integers(0, len(filler)))
    return (filler[(start + i) % len(filler)] for i in range(room))


_DRAWS = 1_000
_LEVEL = 0.95


@dataclass(frozen=True)
class NeedleResult:
    """Recall by depth, bottom of the prompt last.

    Attributes:
        depths: where the facts began, as a fraction of the prompt, [k], ascending in [0, 1].
        positions: token offset of the facts, mean over facts, [k].
        log_probability: of the value, in nats, mean over facts, [k].
        low, high: 95% bootstrap band over facts, [k].
        baseline: mean log-probability with no fact in the prompt.
        by_fact: the log-probabilities, [facts, k].
        starts: token offset of each fact, [facts, k].
        tokens: length of each fact, [facts].
    """

    depths: F64
    positions: F64
    log_probability: F64
    low: F64
    high: F64
    baseline: float
    by_fact: F64
    starts: F64
    tokens: F64

    @property
    def facts(self) -> int:
        """How many facts."""
        return len(self.by_fact)

    def density(self, influence: F64) -> F64:
        """What a curve of influence [n] gives the facts where they stood: the mean density over
        each fact's own tokens, then over facts, [k]; 1 is an even share.

        One position would not do: token 0 is a spike that says nothing of the words behind it.
        """
        curve = Curve(np.asarray(influence, dtype=np.float64))
        tokens = self.tokens[:, None]
        edges = np.stack([self.starts, self.starts + tokens])
        before = np.interp(edges, np.arange(len(curve) + 1), curve.cumulative())
        share = (before[1] - before[0]) / tokens
        return np.asarray(share.mean(axis=0) * len(curve), dtype=np.float64)


def measure(
    loaded: LoadedModel,
    length: int,
    *,
    depths: int = 9,
    facts: int = 8,
    seed: int = 0,
    batch_size: int = 0,
    on_batch: Callable[[int, int], None] | None = None,
    check: Check = no_check,
) -> NeedleResult:
    """Measure recall of `facts` facts at `depths` depths, evenly spread from start to question.

    Args:
        loaded: a model with its tokenizer.
        length: tokens the model reads, value included but for its last token.
        depths: k, at least 2.
        facts: independent keys and values, each in filler of its own.
        seed: draws keys, values and filler.
        batch_size: prompts at once; 0 chooses.
        on_batch: called with (prompts done, prompts in all).
        check: called several times a second, also within a pass; what it raises ends it.

    Raises:
        DocumentsUnusable: no tokenizer, unknown tokens, or no room for fact, question and filler.
        NotFinite: a log-probability is NaN or infinite; names the dtype.
        OutOfMemory: one prompt does not fit.
    """
    planned = plan(loaded, length, depths=depths, facts=facts, seed=seed)
    return run(loaded, planned, batch_size=batch_size, on_batch=on_batch, check=check)


def run(
    loaded: LoadedModel,
    planned: Plan,
    *,
    batch_size: int = 0,
    on_batch: Callable[[int, int], None] | None = None,
    check: Check = no_check,
) -> NeedleResult:
    """Measure what was planned; arguments and errors as in `measure`."""
    depths, drawn = planned.depths, planned.facts
    prompts, starts = planned.prompts()
    values = [fact.value for fact in drawn for _ in range(depths + 1)]
    with interruptible(loaded.model, throttled(check)):
        scores = _log_probabilities(loaded, prompts, values, batch_size, on_batch)
    table = scores.reshape(len(drawn), depths + 1)
    tokens = np.array([len(fact.needle) for fact in drawn], dtype=np.float64)
    baseline = float(table[:, depths].mean())
    return _result(table[:, :depths], baseline, starts, tokens, planned.length, planned.seed)


def _log_probabilities(
    loaded: LoadedModel,
    prompts: Tensor,
    values: Sequence[int],
    batch_size: int,
    on_batch: Callable[[int, int], None] | None,
) -> F64:
    """Log-probability [rows] of the last `values[row]` tokens of each row."""
    found = np.zeros(len(prompts))
    keep = max(values)
    # Row r counts position p of the last `keep` when p belongs to its value.
    mask = torch.arange(keep) >= keep - torch.tensor(values)[:, None]

    def one_batch(first: int, rows: Tensor) -> None:
        with (
            torch.no_grad(),
            model_pass.pass_hooks(loaded.model, keep=keep, gradients=False) as trace,
        ):
            logits = model_pass.last_logits(loaded.model, rows[:, :-1], trace, keep=keep)
        wanted = rows[:, -keep:].to(logits.device)
        tokens = logits.log_softmax(dim=-1).gather(-1, wanted[..., None])[..., 0].double().cpu()
        counted = mask[first : first + len(rows)]
        found[first : first + len(rows)] = torch.where(counted, tokens, 0.0).sum(dim=-1).numpy()
        if on_batch is not None:
            on_batch(first + len(rows), len(prompts))

    how = batching.plan_batches(loaded, prompts, batch_size, gradients=False, keep=keep)
    batching.run_batches(loaded, prompts, how, one_batch)
    if not np.isfinite(found).all():
        raise NotFinite(f"log-probabilities of {loaded.id} are NaN or infinite in {loaded.dtype}")
    return found


def _result(
    by_fact: F64, baseline: float, starts: F64, tokens: F64, length: int, seed: int
) -> NeedleResult:
    draw = np.random.default_rng((seed, len(by_fact), 2))
    picks = draw.integers(0, len(by_fact), size=(_DRAWS, len(by_fact)))
    means = by_fact[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    positions = starts.mean(axis=0)
    return NeedleResult(
        depths=positions / length,
        positions=positions,
        log_probability=by_fact.mean(axis=0),
        low=np.asarray(low, dtype=np.float64),
        high=np.asarray(high, dtype=np.float64),
        baseline=baseline,
        by_fact=by_fact,
        starts=starts,
        tokens=tokens,
    )
