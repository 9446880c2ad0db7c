"""Sentences about a study: about ten claims, each with its numbers, errors and verdict."""

from qkscope.claims.catalogue import all_claims, claims
from qkscope.claims.claim import VERDICTS, Claim, Row, See
from qkscope.claims.summary import summary

__all__ = ["VERDICTS", "Claim", "Row", "See", "all_claims", "claims", "summary"]
