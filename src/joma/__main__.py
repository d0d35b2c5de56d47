"""`python -m joma`: the same as `joma`."""

import sys

from joma.host.search_path import leave_out_working_directory

if __name__ == "__main__":
    leave_out_working_directory()  # before anything else is imported

    from joma.cli.main import main

    sys.exit(main())
