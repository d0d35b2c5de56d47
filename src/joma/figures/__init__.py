"""One look for all figures."""
