"""What is more than noise: the only place with levels, smallest sizes, tests and errors of differences."""

from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.course import Jump, intervals, jumps, plateaus
from qkscope.inference.evidence import Evidence, matched_evidence, own_evidence
from qkscope.inference.series import Change, Series, change, judged
from qkscope.inference.transitions import transition_noise
from qkscope.inference.windows import remains

__all__ = [
    "Change",
    "Contrast",
    "Evidence",
    "Jump",
    "Series",
    "change",
    "contrast",
    "intervals",
    "judged",
    "jumps",
    "matched_evidence",
    "own_evidence",
    "plateaus",
    "remains",
    "transition_noise",
]
