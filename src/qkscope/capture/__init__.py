"""A model and tokens -> queries and keys of each layer, as the attention score sees them -> moments."""

from qkscope.capture.measure import measure
from qkscope.capture.probe import Probing
from qkscope.capture.seam import capture, find_backbone

__all__ = ["Probing", "capture", "find_backbone", "measure"]
