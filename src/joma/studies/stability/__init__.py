"""What warns before training fails."""
