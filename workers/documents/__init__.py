"""What a model reads while it is measured: documents of exactly n tokens, never padded."""

from workers.documents.build import DocumentSet, build, check_vocabulary

__all__ = ["DocumentSet", "build", "check_vocabulary"]
