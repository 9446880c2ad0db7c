"""Sentences about a study: about ten claims, each with its numbers, errors and verdict."""

from qkscope.claims.claim import VERDICTS, Claim, Row, See

__all__ = ["VERDICTS", "Claim", "Row", "See"]
