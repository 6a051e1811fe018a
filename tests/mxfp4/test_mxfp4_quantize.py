"""Guards the bytes of every backend: a wrong tie, a lost sign of zero, a scale off by one.

Everything is compared with the codec, byte for byte; torchao is a second witness where it
has the same rule.
"""

import warnings
from typing import Any

import pytest
import torch
from mxfp4_inputs import FAST_BACKENDS, codec_bytes, every_bf16, mixed_rows, patterns

from kvslab import mxfp4
from kvslab.mxfp4 import Rule

TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def same(ours: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(ours[0], expected[0]) and torch.equal(ours[1], expected[1])


def every_value_in_one_position(control: str) -> torch.Tensor:
    """bf16 `[16384, 128]`: each microblock holds one of the 65,536 values among 31 controlled ones."""
    x = torch.zeros((65536, 32), dtype=torch.bfloat16)
    if control == "six":
        x[:, 1::2] = 6.0
        x[:, 0::2] = -0.5
    elif control == "tiny":
        x[:] = torch.arange(32).to(torch.bfloat16) * 2.0**-130
    column = torch.arange(65536) % 32
    x[torch.arange(65536), column] = every_bf16()
    return x.reshape(16384, 128)


@pytest.fixture(scope="module", params=["zero", "six", "tiny"])
def exhaustive(request: pytest.FixtureRequest) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    x = every_value_in_one_position(request.param)
    return x, codec_bytes(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_every_bf16_value(exhaustive: Any, backend: str, dtype: torch.dtype) -> None:
    x, expected = exhaustive
    assert same(mxfp4.quantize(x.to(dtype), backend=backend), expected)


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule is not Rule.VLLM])
def test_every_bf16_value_under_the_other_rules(rule: Rule) -> None:
    x = every_value_in_one_position("six")
    expected = mxfp4.quantize(x, rule=rule, backend="reference")
    assert same(mxfp4.quantize(x, rule=rule, backend="cpu"), expected)
    part = x[5::37]
    assert same(mxfp4.quantize(part, rule=rule, backend="reference"), codec_bytes(part, rule))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_every_tie_and_its_neighbours_under_every_scale(backend: str, rule: Rule) -> None:
    """Largest element 6 times each scale; then each tie times the scale, one fp32 step either way."""
    rows = []
    for byte in range(1, 254):
        scale = torch.tensor(2.0, dtype=torch.float64) ** (byte - 127)
        amax = torch.tensor([6.0 if byte < 253 else 1.5 * 2], dtype=torch.float64) * scale
        ties = (torch.tensor(TIES, dtype=torch.float64) * scale).to(torch.float32)
        ties = ties[ties.isfinite()]
        near = torch.cat(
            (
                ties,
                torch.nextafter(ties, torch.zeros_like(ties)),
                torch.nextafter(ties, torch.full_like(ties, torch.inf)),
            )
        )
        row = torch.zeros(128)
        row[0], row[32], row[64], row[96] = amax.to(torch.float32), amax.to(torch.float32), 0.0, -0.0
        row[1 : 1 + len(near)], row[33 : 33 + len(near)] = near, -near
        rows.append(row)
    x = torch.stack(rows)
    assert same(mxfp4.quantize(x, rule=rule, backend=backend), codec_bytes(x, rule))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_specials_in_each_position(backend: str, rule: Rule) -> None:
    """NaN, infinities, zeros, subnormals and the largest number at each place of a microblock."""
    specials = [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x807FFFFF]
    specials += [0x7F7FFFFF, 0xFF7FFFFF]
    rows = []
    for special in specials:
        for position in range(32):
            block = [0x3F800000 + 0x01234567 * i % 0x01000000 for i in range(32)]
            block[(position + 7) % 32] = 0x80000000
            block[(position + 9) % 32] = 0x7F000000
            block[(position + 11) % 32] = 0xFF800000 if position % 2 else 0x00000003
            block[position] = special
            alone = [0] * 32
            alone[position] = special
            rows.append(block + alone + block[::-1] + [0x80000001] * 32)
    x = torch.stack([patterns(row) for row in rows])
    assert same(mxfp4.quantize(x, rule=rule, backend=backend), codec_bytes(x, rule))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_mixed_magnitudes(backend: str, dtype: torch.dtype, rule: Rule) -> None:
    x = mixed_rows(200, seed=5, dtype=dtype)
    assert same(mxfp4.quantize(x, rule=rule, backend=backend), codec_bytes(x, rule))


def test_the_codec_is_a_backend() -> None:
    x = mixed_rows(6, seed=9)
    assert same(mxfp4.quantize(x, backend="codec"), codec_bytes(x))


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_inputs_of_any_stride(backend: str) -> None:
    base = mixed_rows(260, seed=1)
    whole = codec_bytes(base[:130])
    transposed = base[:128].T.contiguous().T
    assert not transposed.is_contiguous()
    assert same(mxfp4.quantize(transposed, backend=backend), codec_bytes(base[:128]))
    narrowed = torch.zeros((130, 200))
    narrowed[:, 37:165] = base[:130]
    assert same(mxfp4.quantize(narrowed[:, 37:165], backend=backend), whole)
    assert same(mxfp4.quantize(base[:260:2], backend=backend), codec_bytes(base[:260:2].contiguous()))
    spread = torch.zeros((4, 256))
    spread[:, ::2] = base[:4]
    assert same(mxfp4.quantize(spread[:, ::2], backend=backend), codec_bytes(base[:4]))
    expanded = base[:1].expand(5, 128)
    assert same(mxfp4.quantize(expanded, backend=backend), codec_bytes(expanded))
    assert same(mxfp4.quantize(base[4:4], backend=backend), codec_bytes(base[:0]))


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_outputs_can_be_given_and_their_surroundings_stay(backend: str) -> None:
    x = mixed_rows(130, seed=2)
    values, scales = torch.full((130, 80), 9, dtype=torch.uint8), torch.full((130, 8), 9, dtype=torch.uint8)
    mxfp4.quantize(x, out=(values[:, 3:67], scales[:, 2:6]), backend=backend)
    expected = codec_bytes(x)
    assert same((values[:, 3:67].contiguous(), scales[:, 2:6].contiguous()), expected)
    values[:, 3:67], scales[:, 2:6] = 9, 9
    assert bool((values == 9).all()) and bool((scales == 9).all())


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_queries_are_quantized_head_by_head(backend: str) -> None:
    q = mixed_rows(12, seed=3, dtype=torch.bfloat16).reshape(3, 4, 128)
    expected = codec_bytes(q.reshape(12, 128))
    values, scales = mxfp4.quantize_query(q, backend=backend)
    assert same((values.reshape(12, 64), scales.reshape(12, 4)), expected)
    turned = q.transpose(0, 1)
    values, scales = mxfp4.quantize_query(turned, backend=backend)
    assert same((values.reshape(12, 64), scales.reshape(12, 4)), codec_bytes(turned.reshape(12, 128)))
    out = torch.empty((3, 4, 64), dtype=torch.uint8), torch.empty((3, 4, 4), dtype=torch.uint8)
    assert mxfp4.quantize_query(q, out=out, backend=backend)[0] is out[0]
    assert mxfp4.quantize_query(q[:0], backend=backend)[1].shape == (0, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["codec", *FAST_BACKENDS])
def test_dequantize_every_code_under_every_scale(backend: str, dtype: torch.dtype) -> None:
    """256 scale bytes x 256 value bytes; every product is exact, an infinity, or NaN for byte 255."""
    value = torch.arange(256, dtype=torch.uint8).reshape(4, 64).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8).repeat_interleave(4)[:, None].expand(1024, 4).contiguous()
    table = torch.tensor(mxfp4.E2M1, dtype=torch.float64)
    codes = torch.stack((value & 15, value >> 4), dim=-1).reshape(1024, 128).to(torch.int64)
    expected = (table[codes] * 2.0 ** (scale[:, :1].to(torch.float64) - 127)).to(torch.float32).to(dtype)
    expected[scale[:, 0] == 255] = torch.nan
    if backend == "codec":
        value, scale, expected = value[::5], scale[::5], expected[::5]
    got = mxfp4.dequantize(value, scale, dtype=dtype, backend=backend)
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(got.isnan(), expected.isnan())
    keep = ~expected.isnan()
    assert torch.equal(got[keep].view(integers), expected[keep].view(integers))


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_quantizing_again_changes_nothing(backend: str) -> None:
    """Law: what is on the grid stays where it is."""
    once = mxfp4.dequantize(*mxfp4.quantize(torch.randn(300, 128), backend=backend), backend=backend)
    twice = mxfp4.dequantize(*mxfp4.quantize(once, backend=backend), backend=backend)
    assert torch.equal(once.view(torch.int32), twice.view(torch.int32))


@pytest.fixture(scope="module")
def torchao() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats import mx_tensor
    return mx_tensor


def torchao_bytes(module: Any, x: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    scales, values = module.to_mx(x, torch.float4_e2m1fn_x2, 32, getattr(module.ScaleCalculationMode, mode))
    return values.view(torch.uint8).reshape(-1, 64), scales.view(torch.uint8).reshape(-1, 4)


@pytest.mark.parametrize(
    ("rule", "mode"), [(Rule.OCP_FLOOR, "FLOOR"), (Rule.TORCHAO_EVEN, "EVEN"), (Rule.VLLM, "RCEIL")]
)
@pytest.mark.parametrize("control", ["zero", "six"])
def test_torchao_writes_the_same_bytes(torchao: Any, rule: Rule, mode: str, control: str) -> None:
    """RCEIL is the default rule but for scale byte 0, NaN and infinity, which differ by contract.

    torchao's integer rounding makes a code of a NaN's payload; ours is that of the NaN without one.
    """
    x = every_value_in_one_position(control)
    theirs = torchao_bytes(torchao, x, mode)
    ours = mxfp4.quantize(x, rule=rule, backend="reference")
    payload = x.isnan() & (x.view(torch.int16) & 0x7FFF != 0x7FC0)
    compared = ~payload.reshape(-1, 32).any(dim=-1)
    if rule is Rule.VLLM:
        compared &= (theirs[1].flatten() > 0) & (theirs[1].flatten() < 254)
        assert int(compared.sum()) > 60_000
    values = ours[0].reshape(-1, 16), theirs[0].reshape(-1, 16)
    assert torch.equal(values[0][compared], values[1][compared])
    assert torch.equal(ours[1].flatten()[compared], theirs[1].flatten()[compared])
