"""What a scan found: curves, thresholds on them, tables; and the tensors of one checkpoint as a list."""
