"""Why attention comes back: which weights raise its entropy again, in which layers, when, and what can be foretold."""
