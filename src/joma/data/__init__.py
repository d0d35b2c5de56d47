"""What models read: `token_classes` (Figures 2 and 3), `python_source` (a corpus that every machine has)."""
