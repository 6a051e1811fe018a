"""Guards the silent bug that old bytes of one group are read as numbers of another.

The table of what can turn into NaN is checked against every byte and every pair of
bytes, decoded by torch; FP32 by its own bit pattern. The experiments must find NaN
exactly where the table says, and none after the block was cleared.
"""

import itertools
import struct

import pytest
import torch

from kvslab.errors import InputError
from kvslab.formats import latent_row, state_row
from kvslab.generations import generation_named, standard
from kvslab.groups import own_pages
from kvslab.layers import CacheLayer, LayerSpec
from kvslab.layouts import keep_apart
from kvslab.memory.hazards import (
    ELEMENT_OF_PART,
    MAKES_NAN,
    count_nan,
    deepseek_v4_format,
    double_write_experiment,
    layers_to_zero,
    nan_experiment,
)
from kvslab.models import load_layers
from memory_strategies import STATE, WINDOW

CODES_1 = torch.arange(256, dtype=torch.uint8)
CODES_2 = torch.arange(2**16).to(torch.uint16).view(torch.uint8).reshape(-1, 2)
BACKENDS = [
    ("flashinfer", "mxfp4"),
    ("flashinfer", "fp8"),
    ("flashinfer-bf16", "mxfp4"),
    ("flashmla", "mxfp4"),
]


def finite_bytes(element):
    """Bytes that can stand at each place of a finite element, lowest address first."""
    match element:
        case "fp8":
            return [CODES_1[~CODES_1.view(torch.float8_e4m3fn).float().isnan()].tolist()]
        case "ue8m0":
            return [list(range(255))]
        case "e2m1":
            return [list(range(256))]
        case "bf16":
            finite = CODES_2[CODES_2.view(torch.bfloat16).flatten().isfinite()]
            return [finite[:, 0].unique().tolist(), finite[:, 1].unique().tolist()]
        case _:
            return [list(range(256))] * 4


def can_stand(element, pair):
    """Whether two neighbouring bytes, the first at an even address, can be finite `element`s."""
    low, high = pair
    match element:
        case "bf16":
            return bool(torch.tensor(pair, dtype=torch.uint8).view(torch.bfloat16).isfinite())
        case "fp32":  # the lower half of an FP32 value takes any pair
            return True
        case _:
            allowed = finite_bytes(element)[0]
            return low in allowed and high in allowed


def can_be_upper_half(element, pair):
    """As `can_stand`, at an address of 2 modulo 4."""
    if element != "fp32":
        return can_stand(element, pair)
    return struct.unpack("<f", bytes([0, 0, *pair]))[0] not in (float("inf"), float("-inf")) and not (
        pair[1] & 0x7F == 0x7F and pair[0] & 0x80
    )


def nan_pairs():
    return CODES_2[CODES_2.view(torch.bfloat16).flatten().isnan()].tolist()


@pytest.mark.parametrize("written", sorted(MAKES_NAN))
def test_one_byte_readers(written):
    stands = {byte for place in finite_bytes(written) for byte in place}
    fp8_nan = set(CODES_1[CODES_1.view(torch.float8_e4m3fn).float().isnan()].tolist())
    assert fp8_nan == {0x7F, 0xFF}
    assert (written in MAKES_NAN["fp8"]) == bool(stands & fp8_nan)
    assert (written in MAKES_NAN["ue8m0"]) == (255 in stands)
    assert not MAKES_NAN["e2m1"]


@pytest.mark.parametrize("written", sorted(MAKES_NAN))
def test_readers_of_bf16_and_fp32(written):
    lower = any(can_stand(written, pair) for pair in nan_pairs())
    upper = any(can_be_upper_half(written, pair) for pair in nan_pairs())
    assert (written in MAKES_NAN["bf16"]) == (lower or upper)
    # An FP32 NaN has its exponent in the upper half: any BF16 NaN or infinity pattern there.
    infinities = [[0x80, 0x7F], [0x80, 0xFF]]
    upper = any(can_be_upper_half(written, pair) for pair in [*nan_pairs(), *infinities])
    assert (written in MAKES_NAN["fp32"]) == upper


@pytest.mark.parametrize(("backend", "indexer"), BACKENDS)
@pytest.mark.parametrize("generation", ["overlay", "standard"])
def test_states_read_as_rows_give_nan_until_the_block_is_cleared(backend, indexer, generation):
    layers = load_layers("deepseek-v4-flash", backend=backend, indexer=indexer)
    slab = generation_named(generation).lay_out(layers)
    states = [i for i, g in enumerate(slab.groups) if g.layers[0].name.endswith("state_cache")]
    counts = [count for i in states for count in nan_experiment(slab, i)]
    assert {count.group_id for count in counts} == set(range(len(slab.groups)))
    for count in counts:
        possible = "fp32" in MAKES_NAN[ELEMENT_OF_PART[count.part]]
        # Scales are few; wherever thousands of elements are read, some are NaN.
        assert possible or count.nans == 0, count
        assert count.nans > 0 or not possible or count.elements < 40_000, count
        assert count.nans_after_zeroing == 0
        assert count.elements > 0
    assert any(count.nans for count in counts)


def test_the_experiment_repeats_itself():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-flash"))
    assert nan_experiment(slab, 3, seed=5) == nan_experiment(slab, 3, seed=5)
    assert nan_experiment(slab, 3, seed=5) != nan_experiment(slab, 3, seed=6)


@pytest.mark.parametrize(("backend", "indexer"), BACKENDS)
def test_layers_that_need_zeroing_share_bytes_with_a_dangerous_writer(backend, indexer):
    slab = generation_named("standard").lay_out(
        load_layers("deepseek-v4-flash", backend=backend, indexer=indexer)
    )
    needs = {need.layer: need for need in layers_to_zero(slab)}
    pages = {page.layer.name: page for page in slab.pages}
    elements = {
        n: {ELEMENT_OF_PART[w] for w, _ in deepseek_v4_format(p.layer).parts} for n, p in pages.items()
    }
    for name, page in pages.items():
        covered = set(range(page.offset, page.end, 32))
        dangerous = any(
            MAKES_NAN[read] & elements[other.layer.name]
            for other in pages.values()
            if other.group_id != page.group_id and covered & set(range(other.offset, other.end, 32))
            for read in elements[name]
        )
        assert (name in needs) == dangerous, name
    for need in needs.values():
        assert need.written_as in MAKES_NAN[need.read_as]
        assert pages[need.written_by].group_id != need.group_id


def test_pages_that_only_touch_are_no_danger():
    states = own_pages([CacheLayer(name="state", spec=STATE)])
    rows = own_pages(CacheLayer(name=name, spec=WINDOW) for name in ("under", "after"))
    slab = standard.pack([states, rows])
    assert slab.offset_of == {"state": 0, "under": 0, "after": STATE.page_bytes}
    needs = layers_to_zero(
        slab, lambda layer: state_row(5) if layer.name == "state" else latent_row("fp8", 12, 0)
    )
    assert [need.layer for need in needs] == ["under"]


def test_groups_in_lockstep_do_not_endanger_each_other():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-flash"))
    apart = keep_apart(slab, [tuple(range(len(slab.groups)))])
    assert layers_to_zero(slab) and not layers_to_zero(apart)


def test_two_writers_lose_exactly_the_bytes_they_share():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-pro"))
    for first, second in itertools.permutations((0, 2, 4), 2):
        result = double_write_experiment(slab, first, second)
        here = bytearray(slab.block_stride)
        for mark, group_id in ((1, first), (2, second)):
            for page in slab.pages:
                if page.group_id == group_id:
                    here[page.offset : page.offset + page.payload_bytes] = bytes([mark]) * page.payload_bytes
        kept = here.count(1)
        assert result.lost_bytes == result.payload_bytes - kept
        assert 0 < result.lost_rows <= result.rows
        assert result.refusal == f"block 1: group {second} cannot take it, group {first} owns it"


def test_faults_are_named():
    slab = generation_named("standard").lay_out(load_layers("deepseek-v4-flash"))
    for act, message in (
        (lambda: nan_experiment(slab, 0), "state_group: got 0, need FP32 rows in every layer"),
        (lambda: nan_experiment(slab, 9), "state_group: got 9"),
        (lambda: double_write_experiment(slab, 1, 1), "second_group: got 1, need a group of another owner"),
        (lambda: double_write_experiment(slab, 1, -1), "second_group: got -1"),
    ):
        with pytest.raises(InputError, match=message):
            act()
    odd = CacheLayer(name="x.k_cache", spec=LayerSpec(kind="mla_attention", block_size=4, row_bytes=100))
    with pytest.raises(InputError, match=r"row_bytes of x\.k_cache: got 100, need rows of 132, 68 bytes"):
        deepseek_v4_format(odd)


def test_nan_is_counted_by_code():
    codes = CODES_1
    assert count_nan(codes.view(torch.float8_e4m3fn), "fp8") == 2
    assert count_nan(codes, "ue8m0") == 1
    assert count_nan(codes, "e2m1") == 0
