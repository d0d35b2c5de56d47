"""Files of tensors, in whatever format: each gives named tensors, read without running anything that is in the file."""
