"""Documents and their tokens."""

from qkscope.corpus.documents import (
    Corpus,
    Document,
    documents_from,
    load_corpus,
    token_file,
    tokenizer_identity,
)

__all__ = ["Corpus", "Document", "documents_from", "load_corpus", "token_file", "tokenizer_identity"]
