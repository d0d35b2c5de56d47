"""Where checkpoints are: a file, a folder, a cache, the hub; and which step each of them is."""
