"""Every causal family of transformers, built small and held against the operands of its own attention product."""
