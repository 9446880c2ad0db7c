"""One model: `scan`, `whatif` and `ablate`; stored vectors: `analyze`."""
