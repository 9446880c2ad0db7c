"""What a forward pass leaves behind: one class per sum, all with the methods of `Sum`."""

from qkscope.sums.base import Batch, LayerFacts, Request, Sum, Unrotated, rings
from qkscope.sums.facts import FactSum
from qkscope.sums.keys import KeySum
from qkscope.sums.moments import MomentSum
from qkscope.sums.path import PathSum
from qkscope.sums.scores import ScoreSum

__all__ = [
    "Batch",
    "FactSum",
    "KeySum",
    "LayerFacts",
    "MomentSum",
    "PathSum",
    "Request",
    "ScoreSum",
    "Sum",
    "Unrotated",
    "rings",
]
