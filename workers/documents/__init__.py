"""What a model reads while it is measured: documents of exactly n tokens, never padded."""

from workers.documents.build import build, check_vocabulary
from workers.documents.document_set import DocumentSet

__all__ = ["DocumentSet", "build", "check_vocabulary"]
