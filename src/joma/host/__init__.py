"""What the machine gives: devices, files that are whole or not there, progress, interrupts, exit status, the hub."""
