"""More than one process at a time: `local` works side by side on this machine."""
