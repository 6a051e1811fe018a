"""A mix file: the request lengths of a workload, with their weights.

`{"lengths": [{"tokens": 8192, "weight": 3}, {"tokens": 131072}]}`; a weight is 1 where
it is left out.
"""

from kvslab.capacity import Load
from kvslab.errors import InputError
from kvslab.files import Fields
from kvslab.layers import MAX_LAYERS

MOST_LENGTHS = 5 * MAX_LAYERS


def load_from_json(
    value: object, *, max_in_flight_tokens: int, dcp: int = 1, where: str = "mix file"
) -> Load:
    """Read the parsed JSON of a mix file; a length that stands twice counts with both weights.

    Args:
        value: The parsed JSON.
        max_in_flight_tokens: Tokens scheduled but not settled, of the whole batch.
        dcp: Decode context parallel size.
        where: How errors call the file.

    Raises:
        InputError: A field is missing, unknown, of another type or out of range.

    >>> load_from_json(
    ...     {"lengths": [{"tokens": 8, "weight": 3}, {"tokens": 9}]}, max_in_flight_tokens=1
    ... ).lengths
    ((8, 3), (9, 1))
    """
    top = Fields(value, where)
    top.refuse_unknown(("lengths",))
    entries = top.sequence("lengths")
    if not 1 <= len(entries) <= MOST_LENGTHS:
        raise InputError(top.path("lengths"), len(entries), f"1 to {MOST_LENGTHS:,} lengths")
    weights: dict[int, int] = {}
    for i, entry in enumerate(entries):
        fields = Fields(entry, top.path(f"lengths[{i}]"))
        fields.refuse_unknown(("tokens", "weight"))
        tokens = fields.integer("tokens")
        weights[tokens] = weights.get(tokens, 0) + fields.integer("weight", default=1, maximum=10**9)
    return Load(lengths=tuple(weights.items()), max_in_flight_tokens=max_in_flight_tokens, dcp=dcp)
