"""What sparse attention buys: caches that forget, attention sinks, heads and neurons that can be left out."""
