"""What the book's chapters share: figure settings, numbers for the text, numbered tables, parameters.

A chapter is read in two places.  In the book its text takes numbers and tables from
its code by name, and the code cells that compute them are not shown.  In a notebook
the same cells show the tables and a list of the numbers, and `resolve` writes both
into the text of a notebook that has run::

    jupytext --to ipynb --output out.ipynb chapter.md
    papermill out.ipynb out.ipynb -p backend flashmla
    python -m kvslab.book out.ipynb

Chapters run in Jupyter, which brings IPython; nothing else in the package needs it.
"""

from kvslab.book.chapter import begin, numbers, records, renamed, table
from kvslab.book.notebook import resolve
from kvslab.book.parameters import (
    PUBLISHED,
    Parameter,
    budget_bytes,
    check_room,
    model_title,
    one_of,
    parameters_of,
)

__all__ = [
    "PUBLISHED",
    "Parameter",
    "begin",
    "budget_bytes",
    "check_room",
    "model_title",
    "numbers",
    "one_of",
    "parameters_of",
    "records",
    "renamed",
    "resolve",
    "table",
]
