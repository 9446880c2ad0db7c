"""A model and tokens -> queries and keys of each layer, as the attention score sees them -> moments."""

from qkscope.capture.hooks import capture, find_backbone
from qkscope.capture.measure import measure
from qkscope.capture.probe import Probing

__all__ = ["Probing", "capture", "find_backbone", "measure"]
