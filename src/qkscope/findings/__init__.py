"""Questions about a study, answered with a number, its uncertainty and a verdict."""

from qkscope.findings.catalogue import Finding, findings, summary
from qkscope.findings.conversions import transition_noise

__all__ = ["Finding", "findings", "summary", "transition_noise"]
