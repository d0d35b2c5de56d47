"""What the machine gives: devices, files written atomically, seeds, progress, interrupts, exit status, the hub."""
