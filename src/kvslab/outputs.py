"""Files out: complete or not at all.

A file is written beside its target under a temporary name and then renamed, so a
reader, or a killed run, finds the old file or the new one and never half of it.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from kvslab.errors import InputError


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a whole file, text as UTF-8.

    Raises:
        InputError: The file cannot be written there.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise InputError(str(path), error.strerror or "an error", "a file that can be written") from None
    except BaseException:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
