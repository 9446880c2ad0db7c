"""What a forward pass leaves behind: one class per sum, all with the methods of `Sum`."""

from qkscope.sums.attention_rows import AttentionSum
from qkscope.sums.base import (
    Arrays,
    Batch,
    FactSum,
    LayerFacts,
    Meta,
    Recorder,
    Request,
    Softmax,
    Sum,
    Unrotated,
    checked,
    rings,
)
from qkscope.sums.excerpts import ExampleSum
from qkscope.sums.keys import KeySum
from qkscope.sums.largest_logit import LogitSum
from qkscope.sums.moments import MomentSum
from qkscope.sums.path import PathSum
from qkscope.sums.repeats import RepeatSum
from qkscope.sums.scores import ScoreSum
from qkscope.sums.token_loss import LossSum

__all__ = [
    "Arrays",
    "AttentionSum",
    "Batch",
    "ExampleSum",
    "FactSum",
    "KeySum",
    "LayerFacts",
    "LogitSum",
    "LossSum",
    "Meta",
    "MomentSum",
    "PathSum",
    "Recorder",
    "RepeatSum",
    "Request",
    "ScoreSum",
    "Softmax",
    "Sum",
    "Unrotated",
    "checked",
    "rings",
]
