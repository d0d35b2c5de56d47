"""What drop and rebound of attention entropy need: one part of the network or its training changed at a time."""
