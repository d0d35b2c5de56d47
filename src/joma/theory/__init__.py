"""What the mathematics predicts: pure functions on tensors, float64 for plain numbers, batched, differentiable."""
