"""Studies side by side: what agrees within uncertainty and what does not."""

from qkscope.comparison.matching import Matched, match
from qkscope.comparison.outcome import Comparison, Row
from qkscope.comparison.runs import compare, compare_matched, published

__all__ = ["Comparison", "Matched", "Row", "compare", "compare_matched", "match", "published"]
