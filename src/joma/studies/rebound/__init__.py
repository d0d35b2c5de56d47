"""Why attention comes back: which weights make the entropy of attention rise again, when, where, and what can be foretold."""
