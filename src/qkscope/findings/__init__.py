"""Questions about a study, answered with a headline, numbers and a verdict: each computed once."""

from qkscope.findings.catalogue import Answer, Asked, claims, question
from qkscope.findings.claim import CANNOT_TELL, VERDICTS, Claim, Row
from qkscope.findings.summarize import summary

__all__ = ["CANNOT_TELL", "VERDICTS", "Answer", "Asked", "Claim", "Row", "claims", "question", "summary"]
