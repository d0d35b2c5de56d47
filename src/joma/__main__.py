"""`python -m joma`: the same as `joma`."""

import sys

from joma.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
