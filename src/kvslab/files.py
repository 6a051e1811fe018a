"""Files in and out: the one place that reads a user's file, and the one that writes any.

In, untrusted JSON becomes checked values.  Everything that can be wrong with a file
(missing, not text, not JSON, too deep, a field of another type) leaves here as one
`InputError` that names the field.

Out, a file is complete or not there at all.  It is written beside its target under a
temporary name and then renamed, so a reader, or a killed run, finds the old file or the
new one and never half of it.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from kvslab.errors import MISSING, InputError
from kvslab.intmath import MAX_INT, checked_int

MAX_FILE_BYTES = 64 * 1024 * 1024


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} stands twice in one object")
        found[key] = value
    return found


def parse_json(text: str, source: str) -> object:
    """Parse strict JSON: no NaN, no key twice.

    Raises:
        InputError: The text is no such JSON; `source` is named.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
        if "\\ud" in text.lower():  # half a surrogate pair would break every later print and write
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError:
        raise InputError(source, "nested too deeply", "JSON of ordinary depth") from None
    except UnicodeEncodeError:
        raise InputError(source, "half a surrogate pair", "text of whole characters") from None
    except ValueError as error:
        raise InputError(source, str(error), "a JSON object") from None


def read_text(path: Path, what: str) -> str:
    """Read a text file of at most 64 MiB, a pipe or a device no further than that.

    Args:
        path: The file.
        what: How errors call what is needed, e.g. `JSON file`.

    Raises:
        InputError: The file cannot be read, is too large, or is no UTF-8.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise InputError(str(path), "a larger file", f"at most {MAX_FILE_BYTES:,} bytes")
        return raw.decode("utf-8")
    except InputError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            reason = "no UTF-8 text"
        else:
            reason = getattr(error, "strerror", None) or "a name that no file can have"
        raise InputError(str(path), reason, f"a readable {what}") from None


def read_json(path: Path) -> object:
    """Read and parse a JSON file of at most 64 MiB.

    Raises:
        InputError: The file cannot be read, is too large, or is no JSON.
    """
    return parse_json(read_text(path, "JSON file"), str(path))


def is_there(path: Path) -> bool:
    """Whether there is a file or a directory of this name.

    Raises:
        InputError: The system cannot say: the name is too long, or a directory is closed.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a name that no file can have"
        raise InputError(str(path), reason, "a name that can be looked up") from None
    return True


class Fields:
    """One JSON object whose fields are asked for by name and type.

    Args:
        value: The parsed JSON value; anything but an object is refused.
        where: How the user would call it, e.g. `config.json` or `layers[3]`.

    >>> Fields({"head_dim": 512}, "config").integer("head_dim")
    512
    >>> Fields({}, "config").integer("head_dim")
    Traceback (most recent call last):
    kvslab.errors.InputError: config.head_dim: got nothing, need an integer from 1 to 9,007,199,254,740,992
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise InputError(where, value, "a JSON object")
        self._fields: Mapping[str, object] = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def path(self, name: str) -> str:
        """The full name of a field, as errors print it."""
        return f"{self.where}.{name}" if self.where else name

    def get(self, name: str) -> object:
        """The raw value, or None where the field is missing."""
        return self._fields.get(name)

    def items(self) -> Iterable[tuple[str, object]]:
        """The fields' names and raw values."""
        return self._fields.items()

    def _need(self, name: str, need: str) -> object:
        if name not in self._fields:
            raise InputError(self.path(name), MISSING, need)
        return self._fields[name]

    def integer(
        self, name: str, *, default: int | None = None, minimum: int = 1, maximum: int = MAX_INT
    ) -> int:
        """An integer in range; `default` where the field is missing.

        Raises:
            InputError: It is missing with no default, of another type, or out of range.
        """
        if default is not None and name not in self._fields:
            return default
        value = self._need(name, f"an integer from {minimum:,} to {maximum:,}")
        return checked_int(self.path(name), value, minimum=minimum, maximum=maximum)

    def optional_integer(self, name: str) -> int | None:
        """A positive integer, or None where the field is missing or null."""
        return None if self._fields.get(name) is None else self.integer(name)

    def text(self, name: str, *, choices: Iterable[str] = ()) -> str:
        """A non-empty string, one of `choices` where they are given.

        Raises:
            InputError: It is missing or another value.
        """
        allowed = tuple(choices)
        need = f"one of {', '.join(allowed)}" if allowed else "a non-empty string"
        value = self._need(name, need)
        if not isinstance(value, str) or not value or (allowed and value not in allowed):
            raise InputError(self.path(name), value, need)
        return value

    def sequence(self, name: str) -> list[object]:
        """A JSON array.

        Raises:
            InputError: It is missing or no array.
        """
        value = self._need(name, "a list")
        if not isinstance(value, list):
            raise InputError(self.path(name), value, "a list")
        return value

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a field that nobody reads, which is nearly always a typing error.

        Raises:
            InputError: A field is not in `known`.
        """
        allowed = sorted(known)
        for name in self._fields:
            if name not in allowed:
                raise InputError(
                    self.path(name), self._fields[name], f"no such field (known: {', '.join(allowed)})"
                )


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a whole file, text as UTF-8.

    Raises:
        InputError: The file cannot be written there.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        reason = getattr(error, "strerror", None) or "a name that no file can have"
        raise InputError(str(path), reason, "a file that can be written") from None
    except BaseException:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
