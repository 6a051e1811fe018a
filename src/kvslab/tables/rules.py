"""The bytes that each public rounding rule writes for microblocks on which they part.

Computed by the plain integer codec, which shares no arithmetic with the kernels.
"""

import math
import struct

import pandas as pd

from kvslab.errors import PlanError

_SHOWN = 8
_SOURCES = {
    "vllm": "vLLM, models/deepseek_v4/common/ops/fused_indexer_q.py",
    "ocp_floor": "OCP MX v1.0, section 6.3",
    "torchao_even": "torchao 0.18, prototype/mx_formats/mx_tensor.py",
    "deepgemm": "DeepGEMM, deep_gemm/utils/math.py",
    "sglang": "SGLang, FP4 indexer quantizer",
}


def telling_microblocks() -> dict[str, list[float]]:
    """Microblocks, 32 elements each, on which implementations are known to part."""
    nan, infinity = math.nan, math.inf
    starts = {
        "zeros": [0.0, -0.0],
        "ties under scale 1": [6.0, 0.25, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5],
        "largest 7 (floor saturates)": [7.0, -7.0, 5.5, 3.0, 1.0, 0.5, 0.25, 0.0],
        "largest 1e-5": [1e-5, -1e-5, 5e-6, 2e-6, 1e-6, 5e-7, 1e-7, 0.0],
        "a NaN": [nan, 1.0, -1.0, 0.0, -0.0, 2.0, 4.0, 6.0],
        "an infinity": [infinity, -infinity, 1.0, -1.0, 1e38, -3e38, 0.0, -0.0],
    }
    return {name: start + [0.0] * (32 - len(start)) for name, start in starts.items()}


def _pattern(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def _value(pattern: int) -> float:
    return float(struct.unpack("<f", pattern.to_bytes(4, "little"))[0])


def rules_table() -> pd.DataFrame:
    """One row per microblock and rule.

    Columns: microblock, rule, scale_byte, codes (the first 8, hexadecimal), first_values
    (what they read back as), source.

    Raises:
        PlanError: torch is missing, which `kvslab.mxfp4` needs.
    """
    try:
        from kvslab.mxfp4 import Rule, codec
    except ModuleNotFoundError:
        raise PlanError("table mxfp4_rules needs torch: pip install 'kvslab[kernels]'") from None
    rows = []
    for label, numbers in telling_microblocks().items():
        patterns = [_pattern(number) for number in numbers]
        for rule in Rule:
            values, scales = codec.quantize_row(patterns * 4, rule)
            codes = "".join(f"{pair & 15:x}{pair >> 4:x}" for pair in values[: _SHOWN // 2])
            back = codec.dequantize_row(values, scales)[:_SHOWN]
            rows.append(
                {
                    "microblock": label,
                    "rule": str(rule),
                    "scale_byte": scales[0],
                    "codes": codes,
                    "first_values": " ".join(f"{_value(pattern):g}" for pattern in back),
                    "source": _SOURCES[str(rule)],
                }
            )
    return pd.DataFrame(rows)
