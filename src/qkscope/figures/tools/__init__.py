"""What pictures are drawn with."""
