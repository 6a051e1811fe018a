"""`python -m kvslab` is the command line."""

import sys

from kvslab.cli import main

if __name__ == "__main__":
    sys.exit(main())
