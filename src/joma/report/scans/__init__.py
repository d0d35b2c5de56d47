"""What a page says of scans of checkpoints: their curves, figures and tables, and two of them on one axis."""
