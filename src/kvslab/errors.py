"""The faults a user can cause, one small class each.

Every message is one line: it names the field or the layers, says what was got
and what is needed, and gives the numbers.  The command line prints it and exits
with code 2; nothing else in the package catches these.

What a file holds may be absurd: a name of a megabyte, a line break or a terminal's
control character in it, a value that Python cannot print.  The message stays short,
readable and one line.
"""

from collections.abc import Iterator

_MOST_MESSAGE = 1_500
_MOST_FIELD = 300
_MOST_VALUE = 80


def _one_line(text: str) -> str:
    """The text with every character escaped that would break a line or reach the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _cut_middle(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def _pieces(value: object) -> Iterator[str]:
    """The `repr` of a value piece by piece: a nest of lists is never walked to its end."""
    match value:
        case str() | bytes():
            yield repr(value[: _MOST_VALUE + 1])
        case dict():
            yield "{"
            for i, (key, item) in enumerate(value.items()):
                yield ", " if i else ""
                yield from _pieces(key)
                yield ": "
                yield from _pieces(item)
            yield "}"
        case list() | tuple():
            yield "[" if isinstance(value, list) else "("
            for i, item in enumerate(value):
                yield ", " if i else ""
                yield from _pieces(item)
            yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
        case int() if value.bit_length() > 1_024:
            yield f"an integer of {value.bit_length():,} bits"
        case _:
            yield repr(value)


def _shown(value: object) -> str:
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _MOST_VALUE:
            break
    return _cut(text, _MOST_VALUE)


class PlanError(ValueError):
    """The base of every error that `kvslab` raises on purpose; its message is one line.

    Args:
        message: What is wrong; control characters in it are escaped.

    >>> import kvslab
    >>> try:
    ...     kvslab.load_layers("no-such-model")
    ... except kvslab.PlanError as error:
    ...     print(str(error)[:32])
    model: got 'no-such-model', need
    """

    def __init__(self, message: str) -> None:
        super().__init__(_cut(_one_line(message), _MOST_MESSAGE))


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""What `InputError` reports for a field that is not there."""


class InputError(PlanError):
    """A field of a file, an option or an argument has a value that cannot be used.

    Args:
        field: The field as the user wrote it, e.g. `layers[3].block_size`.
        got: The value found there.
        need: What would have been accepted.

    >>> raise InputError("block_size", -4, "a positive integer")
    Traceback (most recent call last):
    kvslab.errors.InputError: block_size: got -4, need a positive integer
    """

    def __init__(self, field: str, got: object, need: str) -> None:
        super().__init__(f"{_cut_middle(_one_line(field), _MOST_FIELD)}: got {_shown(got)}, need {need}")
        self.field = field
        self.got = got
        self.need = need

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, object, str]]:
        return type(self), (self.field, self.got, self.need)  # a worker process sends it back whole

    def within(self, where: str) -> "InputError":
        """The same fault, with the field named from further out."""
        return InputError(f"{where}.{self.field}", self.got, self.need)


class RefusedError(PlanError):
    """A generation of the engine refuses this stack of layers.

    The message names the layers, with the sizes (bytes) that do not go together.

    >>> raise RefusedError("page of 'a': got 24,576 bytes, need a divisor of 32,768")
    Traceback (most recent call last):
    kvslab.errors.RefusedError: page of 'a': got 24,576 bytes, need a divisor of 32,768
    """


class LayoutError(PlanError):
    """A slab would be unsound: pages overlap, or one ends past the block stride.

    Offsets in the message are bytes from the start of the block.

    >>> from kvslab.groups import CacheGroup
    >>> CacheGroup(layers=(), page_bytes=())
    Traceback (most recent call last):
    kvslab.errors.LayoutError: a group needs one page a layer: got 0 layers, 0 pages
    """


class BudgetError(PlanError):
    """The byte budget does not hold one block.

    >>> from kvslab import Plan, generation_named, load_layers
    >>> Plan(slab=generation_named("overlay").lay_out(load_layers("deepseek-v4-pro")), budget_bytes=1024)
    Traceback (most recent call last):
    kvslab.errors.BudgetError: budget: got 1,024 bytes, need one block: 1,228,800
    """


class OwnershipError(PlanError):
    """A block is taken, used or freed by a group that does not own it."""


class PoolFullError(PlanError):
    """More blocks are asked for than the pool has free."""
