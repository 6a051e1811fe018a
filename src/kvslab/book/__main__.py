"""`python -m kvslab.book NOTEBOOK...` writes into notebooks' text what their code computed."""

import sys

from kvslab.book.notebook import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
