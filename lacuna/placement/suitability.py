"""Which profile of a model suits a prompt best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profiles import ProfileSummary
from lacuna.evidence.bands import MIN_EFFECTIVE

_CHARACTERS = 4
"""Of English text in a token, to estimate a prompt whose texts are not counted yet."""


def by_suitability(
    newest_first: Sequence[ProfileSummary], request: PlacementRequest
) -> list[ProfileSummary]:
    """The profiles, most suitable first. The first criterion that tells two apart decides:

    1. the revision that was measured last;
    2. the model as it is used, not an ablation;
    3. how it reads, not how it reaches one target;
    4. Lacuna's or the operator's texts, not a caller's own: that caller's prompts need not be like
       this one (name such a profile by its id);
    5. enough documents for an interval of the gain;
    6. a length within the same power of two of the prompt's;
    7. a recall curve, if the request names that source;
    8. at least twice as many documents;
    9. the newest.
    """
    if not newest_first:
        return []
    tokens = _prompt_tokens(request)
    revision = newest_first[0].revision

    def key(summary: ProfileSummary) -> tuple[float, ...]:
        octaves = abs(math.log2(summary.sequence_length / tokens))
        return (
            summary.revision != revision,
            not summary.as_used,
            summary.objective == "target_logprob",
            summary.documents_source == "inline",
            summary.documents < MIN_EFFECTIVE,
            round(octaves),
            request.source == "recall" and not summary.recall,
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
