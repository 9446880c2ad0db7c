"""What a forward pass leaves behind: one class per sum, all with the methods of `Sum`."""

from qkscope.sums.base import Arrays, Batch, LayerFacts, Meta, Request, Sum, Unrotated, checked, rings
from qkscope.sums.facts import FactSum
from qkscope.sums.keys import KeySum
from qkscope.sums.loss import LossSum
from qkscope.sums.moments import MomentSum
from qkscope.sums.path import PathSum
from qkscope.sums.scores import ScoreSum

__all__ = [
    "Arrays",
    "Batch",
    "FactSum",
    "KeySum",
    "LayerFacts",
    "LossSum",
    "Meta",
    "MomentSum",
    "PathSum",
    "Request",
    "ScoreSum",
    "Sum",
    "Unrotated",
    "checked",
    "rings",
]
