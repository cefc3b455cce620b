"""Which of a model's profiles suits a prompt best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.contract.placements import PlacementRequest
from service.contract.profiles import ProfileSummary

_CHARACTERS = 4
"""Of English text in a token, to estimate a prompt whose texts are not counted yet."""


def by_suitability(
    newest_first: Sequence[ProfileSummary], request: PlacementRequest
) -> list[ProfileSummary]:
    """The profiles, most suitable first.

    The revision measured last comes before any other, the model as it is used before ablations,
    how it reads before how it reaches one target, Lacuna's and the operator's texts before a
    caller's own (whose prompts need not be like this one: name such a profile by its id), more
    documents than one before one (whose noise is unknown), a length within the same power of two of
    the prompt's before others, one with the needle curve before one without unless another source
    is asked for, twice as many documents before half as many, and then the newest.
    """
    if not newest_first:
        return []
    tokens = _prompt_tokens(request)
    revision = newest_first[0].revision
    needle = request.source in (None, "needle")

    def key(summary: ProfileSummary) -> tuple[float, ...]:
        octaves = abs(math.log2(summary.sequence_length / tokens))
        return (
            summary.revision != revision,
            not summary.as_used,
            summary.objective == "target_logprob",
            summary.documents_source == "inline",
            summary.documents == 1,
            round(octaves),
            needle and not summary.needle,
            -summary.documents.bit_length(),
        )

    return sorted(newest_first, key=key)


def _prompt_tokens(request: PlacementRequest) -> int:
    """About how long the prompt will be, at least 1."""
    chunks = [
        chunk.tokens if chunk.tokens is not None else len(chunk.text or "") / _CHARACTERS
        for chunk in request.chunks
    ]
    between = request.separator_tokens * max(0, len(chunks) - 1)
    whole = request.prefix_tokens + sum(chunks) + between + request.suffix_tokens
    return max(1, round(min(whole, request.max_tokens or whole)))
