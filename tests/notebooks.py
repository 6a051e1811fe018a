"""Runs a chapter's cells as Jupyter does, without a kernel of its own: imports are paid once a process."""

import contextlib
import io
from pathlib import Path
from typing import Any

import jupytext
import matplotlib
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import activate_matplotlib
from IPython.utils.capture import capture_output
from matplotlib import pyplot
from matplotlib_inline.backend_inline import configure_inline_support
from traitlets.config import Config


def notebook_of(path: Path, parameters: dict[str, object] | None = None) -> Any:
    """A page as a notebook, with Papermill's cell after the `parameters` cell."""
    notebook = jupytext.read(path)
    if parameters:
        index = next(
            i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())
        )
        source = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
        cell = jupytext.reads(source, fmt="py:percent").cells[0]
        cell.metadata["tags"] = ["injected-parameters"]
        notebook.cells.insert(index + 1, cell)
    return notebook


def executed(path: Path, parameters: dict[str, object] | None = None) -> dict[str, Any]:
    """The notebook with its outputs; stops at the first cell that fails, as Papermill does.

    `stderr` is what its cells printed there, `error` what a reader sees of the failure.
    """
    shell = _shell()
    shell.reset(new_session=False)
    pyplot.close("all")
    configure_inline_support(shell, matplotlib.get_backend())
    notebook = notebook_of(path, parameters)
    stderr, error = "", ""
    with contextlib.chdir(path.parent):
        for cell in notebook.cells:
            if cell.cell_type != "code" or error:
                continue
            with capture_output() as captured:
                result = shell.run_cell(cell.source, store_history=False)
            cell["outputs"] = [
                {"output_type": "display_data", "data": dict(out.data), "metadata": dict(out.metadata or {})}
                for out in captured.outputs
            ]
            stderr += captured.stderr
            if not result.success:
                error = captured.stdout
    return {"notebook": notebook, "stderr": stderr, "error": error}


def _shell() -> InteractiveShell:
    activate_matplotlib("module://matplotlib_inline.backend_inline")
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    with contextlib.redirect_stderr(io.StringIO()):
        return InteractiveShell.instance(config=config)
