"""Survey of every causal family of transformers: capture compared with the operands of the attention product."""
