"""What the tensors of a checkpoint are called, and what they are to their layer."""
