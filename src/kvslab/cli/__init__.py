"""The command line: parses, calls the library, prints. It decides nothing.

Every error is one line on stderr that starts with `kvslab:`, with exit code 2.
`reproduce` and `results verify` exit with 1 where numbers do not come out.
"""

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kvslab import __version__
from kvslab.cli import explaining, fitting, planning, records, sweeping
from kvslab.errors import PlanError

app = typer.Typer(
    help="Plan, draw and check what one KV-cache block of a hybrid-attention model costs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (planning, explaining, fitting, sweeping, records):
    part.register(app)


@app.callback(invoke_without_command=True)
def _top(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show_version:
        print(f"kvslab {__version__}")
        raise typer.Exit


# typer carries its own click, so its exception for bad usage is reached through a public subclass.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Instead of `sys.argv[1:]`.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal, or a file's name, of another encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="kvslab", standalone_mode=False)
    except PlanError as error:
        message = str(error)
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
    except (KeyboardInterrupt, typer.Abort):
        print("kvslab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    else:
        return code if isinstance(code, int) else 0
    if message.strip():  # without arguments the help is printed, and there is nothing to add
        print(f"kvslab: {' '.join(message.split())}", file=sys.stderr)
    return 2
