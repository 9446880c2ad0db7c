"""One model, quickly: text in, the correlation of every head with position out."""

from qkscope.scanning.model import ScanResult, scan

__all__ = ["ScanResult", "scan"]
