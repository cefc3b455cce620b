"""What a model reads while it is measured: documents of exactly n tokens, never padded.

`build` makes them; the texts come from the request, from `corpus`, or are random tokens.
"""

from workers.documents.build import DocumentSet, build, check_vocabulary

__all__ = ["DocumentSet", "build", "check_vocabulary"]
