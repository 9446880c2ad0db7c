"""What is more than noise: the only place with levels, smallest sizes, tests and errors of differences."""

from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.evidence import Evidence, matched_evidence, own_evidence
from qkscope.inference.series import Change, Series, change, judged
from qkscope.inference.transitions import transition_noise

__all__ = [
    "Change",
    "Contrast",
    "Evidence",
    "Series",
    "change",
    "contrast",
    "judged",
    "matched_evidence",
    "own_evidence",
    "transition_noise",
]
