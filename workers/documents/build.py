"""From the request's `documents` to token ids: `build` makes a `DocumentSet`.

Sources: the built-in text and the operator's corpora (`corpus`), the caller's own texts, of which
the first tokens are read, and ids drawn uniformly from the vocabulary.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lacuna.architectures.table import find_preset
from lacuna.contract.errors import DocumentsUnusable, LacunaError
from lacuna.contract.profile_requests import Documents
from workers.documents import corpus
from workers.documents.tokens import Policy, encode_beginning, policy, unknown_token
from workers.models.loaded import LoadedModel


@dataclass(frozen=True)
class DocumentSet:
    """K documents of n tokens.

    Attributes:
        ids: int64 tensor of shape [K, n], on the CPU.
        leading_bos: whether the tokenizer's own policy put a BOS token first.
        source: what they were made of: "builtin", "random_tokens", "inline" or "corpus".
        warnings: what to know when reading the result.
        leading: special tokens that the tokenizer puts before a text, in every document.
        trailing: those that it would put after a text; left off.
    """

    ids: Tensor
    leading_bos: bool
    source: str
    warnings: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    trailing: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (32 hex characters) of the shape and of all ids in little-endian int64."""
        return _digest(self.ids)

    @property
    def keys(self) -> tuple[str, ...]:
        """The same digest of each document by itself."""
        return tuple(_digest(row[None]) for row in self.ids)

    def part(self, start: int, stop: int) -> DocumentSet:
        """The documents `start` to `stop` - 1."""
        return dataclasses.replace(self, ids=self.ids[start:stop])


def _digest(ids: Tensor) -> str:
    count, length = ids.shape
    content = ids.to(torch.int64).numpy().astype("<i8").tobytes()
    return hashlib.sha256(f"{count} {length}\n".encode() + content).hexdigest()[:32]


_NO_SPECIALS = Policy((), (), leading_bos=False)


def build(
    spec: Documents,
    loaded: LoadedModel,
    length: int,
    seed: int,
    *,
    corpus_dir: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> DocumentSet:
    """Documents of exactly `length` tokens for this model's tokenizer.

    As many as `documents.count` says, or `documents.most` for `auto`. They come in a
    fixed order, in which the first ones are spread evenly over all that there are; a larger set
    begins with the smaller one.

    Every document is what the tokenizer makes of a text by its own policy: a BOS token leads only
    if the tokenizer puts one there. Tokens that it would put after the text are left off. Texts
    that are too short are left out, never padded. When there are fewer documents than asked for,
    those are used, and a warning says so.

    Args:
        spec: the request's `documents`.
        loaded: the model; without a tokenizer (presets), random tokens replace the built-in text.
        length: n, at least 1.
        seed: of random tokens.
        corpus_dir: the operator's corpora, for source `corpus`.
        check: called at every text of a corpus; may raise to give up.

    Raises:
        DocumentsUnusable: no document reaches the length, or the tokenizer does not know the texts.
        ModelUnsupported: the tokenizer fails on a text.
    """
    source, notes = _source(spec, loaded)
    rules = _NO_SPECIALS if loaded.tokenizer is None else policy(loaded.tokenizer)
    room = rules.room(length)
    if room < 0:
        raise DocumentsUnusable(
            f"`sequence_length`: {length} tokens have no room for a text, since the tokenizer adds "
            f"{length - room} special tokens",
            field="sequence_length",
        )
    if room == 0:  # only special tokens: all documents are the same
        bodies: list[list[int]] = [[]]
        more: tuple[str, ...] = ()
    else:
        bodies, more = _bodies(source, spec, loaded, room, seed, corpus_dir, check)
    notes += more
    if not bodies:
        raise DocumentsUnusable(
            f"`documents`: no text has {length} tokens or more", field="documents"
        )
    bodies, same = _distinct(bodies)
    notes += same
    if source != "inline" and spec.count != "auto" and len(bodies) < spec.count:
        notes += (f"{len(bodies)} documents of {length} tokens instead of {spec.count}: "
                  "the text has no more",)  # fmt: skip
    ids = torch.tensor([rules.wrap(body) for body in bodies], dtype=torch.int64)
    check_vocabulary(ids, loaded, "documents")
    notes += _unknown(bodies, loaded)
    leading, trailing = (_names(loaded, some) for some in (rules.prefix, rules.suffix))
    return DocumentSet(ids, rules.leading_bos, source, notes, leading, trailing)


def _distinct(bodies: list[list[int]]) -> tuple[list[list[int]], tuple[str, ...]]:
    """Each document once, and a warning about the others: texts may begin alike, and short pieces
    of a text repeat. A document that counts twice would make the bands too narrow."""
    found = [list(body) for body in dict.fromkeys(map(tuple, bodies))]
    if len(found) == len(bodies):
        return bodies, ()
    left = len(bodies) - len(found)
    return found, (
        f"{left} of {len(bodies)} documents have the same tokens as another one and were left out",
    )


def _names(loaded: LoadedModel, tokens: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(str(loaded.tokenizer.convert_ids_to_tokens(token)) for token in tokens)  # type: ignore[union-attr]


_FEW_UNKNOWN, _MANY_UNKNOWN = 0.01, 0.5
"""Shares of the texts' tokens: more than the first is said, more than the second is refused."""


def _unknown(bodies: list[list[int]], loaded: LoadedModel) -> tuple[str, ...]:
    """Refuse texts that the tokenizer was not made for; a warning when it lacks a part of them."""
    token = None if loaded.tokenizer is None else unknown_token(loaded.tokenizer)
    ids = np.array(bodies)
    if token is None or not ids.size:
        return ()
    share = float(np.mean(ids == token))
    name = _names(loaded, (token,))[0]
    said = f"the tokenizer of {loaded.id} reads {share:.1%} of the texts' tokens as {name}"
    if share > _MANY_UNKNOWN:
        raise DocumentsUnusable(
            f"`documents`: {said}: it was not made for these texts", field="documents"
        )
    return (said,) if share > _FEW_UNKNOWN else ()


def _source(spec: Documents, loaded: LoadedModel) -> tuple[str, tuple[str, ...]]:
    if loaded.tokenizer is not None or spec.source == "random_tokens":
        return spec.source, ()
    if spec.source == "builtin":
        return "random_tokens", (f"{_bare(loaded)}: random tokens were read",)
    raise DocumentsUnusable(
        f"`documents.source`: {_bare(loaded)}, so it can read random_tokens only",
        field="documents.source",
    )


def _bare(loaded: LoadedModel) -> str:
    """Why there is no tokenizer; a hub model may have one where the preset of its name has none."""
    if loaded.weights == "random" and find_preset(loaded.id) is not None:
        return f"the random weights of the preset {loaded.id} come without a tokenizer"
    return f"{loaded.id} has no tokenizer"


def _bodies(
    source: str,
    spec: Documents,
    loaded: LoadedModel,
    room: int,
    seed: int,
    corpus_dir: Path | None,
    check: Callable[[], None],
) -> tuple[list[list[int]], tuple[str, ...]]:
    tokenizer, count = loaded.tokenizer, spec.limit
    if source == "random_tokens":
        size = loaded.vocabulary
        return random_pieces(tokenizer, size, room, count, seed), ()
    if source == "inline":
        found, notes = inline_pieces(tokenizer, list(spec.texts or ()), room, count)
        return corpus.spread(found), notes
    if source == "corpus":
        folder = corpus.corpus_folder(str(spec.name), corpus_dir)
        return corpus.spread(corpus.corpus_pieces(tokenizer, folder, room, count, check)), ()
    return corpus.builtin_pieces(corpus.builtin_tokens(tokenizer), room, count), ()


def inline_pieces(
    tokenizer: Any, texts: list[str], room: int, count: int
) -> tuple[list[list[int]], tuple[str, ...]]:
    """The first `room` tokens of each text that has them, and warnings about the other texts."""
    found, short = [], 0
    for text in texts[:count]:
        ids = encode_beginning(tokenizer, text, room)
        if len(ids) >= room:
            found.append(ids[:room])
        else:
            short += 1
    warnings = []
    if len(texts) > count:
        warnings.append(f"{len(texts)} texts were given, `documents` allows {count} of them")
    if short:
        warnings.append(
            f"{short} of {min(len(texts), count)} texts are too short and were left out"
        )
    return found, tuple(warnings)


def random_pieces(
    tokenizer: Any | None, vocabulary: int, room: int, count: int, seed: int
) -> list[list[int]]:
    """`count` pieces of `room` random ids, without special tokens.

    Args:
        tokenizer: names the special tokens and the ids in use; None draws from all of them.
        vocabulary: rows of the embedding table, often padded beyond the tokenizer's.
        seed: of the generator.
    """
    used, special = vocabulary, set()
    if tokenizer is not None:
        used = min(vocabulary, len(tokenizer))
        special = set(tokenizer.all_special_ids)
    allowed = np.setdiff1d(
        np.arange(used), np.fromiter(special, dtype=np.int64, count=len(special))
    )
    drawn = np.random.default_rng(seed).integers(0, len(allowed), size=(count, room))
    return [[int(token) for token in row] for row in allowed[drawn]]


def check_vocabulary(
    ids: torch.Tensor,
    loaded: LoadedModel,
    field: str,
    kind: type[LacunaError] = DocumentsUnusable,
    *,
    scored: bool = False,
) -> None:
    """Refuse tokens that the model does not have; a tokenizer may have more than its tables.

    On a GPU an index out of range breaks the device for the whole process.

    Args:
        ids: token ids of any shape, at least one.
        loaded: the model.
        field: of the request, where they come from.
        kind: of the error raised.
        scored: their logits are read too, so the LM head must have them.

    Raises:
        DocumentsUnusable, or `kind`: names the highest token.
    """
    highest, rows = int(ids.max()), loaded.vocabulary
    if scored:
        rows = min(rows, loaded.scored_vocabulary)
    if highest >= rows:
        raise kind(
            f"`{field}`: the tokenizer of {loaded.id} gives token {highest}, its embedding table "
            f"has {rows} rows",
            field=field,
        )
