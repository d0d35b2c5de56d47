"""Where this process looks for modules. Imports nothing that Python has not loaded yet: it runs before all else."""

import os
import sys


def leave_out_working_directory() -> None:
    """Take away what `python -m` has put first: a numpy.py in the working directory is not ours to run."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed, and Python has put nothing first
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]
