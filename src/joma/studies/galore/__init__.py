"""GaLore: what its theory says, whether gradients are of low rank, and what training in that space costs."""
