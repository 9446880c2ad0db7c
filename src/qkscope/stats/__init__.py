"""What is more than noise: the only place with levels, smallest sizes, tests and errors of differences."""

from qkscope.stats.contrast import Contrast, contrast
from qkscope.stats.evidence import Evidence, matched_evidence, own_evidence
from qkscope.stats.series import Change, Series, change, judged
from qkscope.stats.transitions import transition_noise

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
