"""Kernel records of several GPUs side by side."""

import pandas as pd

POINT = ["operation", "layout", "rows", "queries"]


def devices_table(records: pd.DataFrame) -> pd.DataFrame:
    """The best kvslab kernel at each point and device, beside the best other contender there.

    Points without a number are left out.

    Args:
        records: Rows of `results/mxfp4_gpu/`, of one device or several.

    Returns:
        One row per point and device. Columns: operation, layout, rows, queries, device, kernel, us,
        of_copy_percent, other, over_other (the other's time over ours; missing where none ran).
    """
    good = records[(records["status"] == "ok") & (records["operation"] != "copy")].copy()
    good["layout"] = good["layout"].astype("string").fillna("")
    good["queries"] = good["queries"].astype("Int64").astype("string").fillna("")
    ours = good["contender"].str.startswith("kvslab")
    rows = []
    for (*point, device), mine in good[ours].groupby([*POINT, "device"], sort=False):
        best = mine.sort_values("us").iloc[0]
        row = dict(zip(POINT, point, strict=True)) | {"device": device}
        row |= {"kernel": best["contender"].removeprefix("kvslab "), "us": best["us"]}
        row["of_copy_percent"] = 100 * best["of_copy"]
        same = good[~ours & (good["device"] == device)]
        for name, value in zip(POINT, point, strict=True):
            same = same[same[name] == value]
        other = None if same.empty else same.sort_values("us").iloc[0]
        row["other"] = "" if other is None else other["contender"]
        row["over_other"] = None if other is None else other["us"] / best["us"]
        rows.append(row)
    columns = [*POINT, "device", "kernel", "us", "of_copy_percent", "other", "over_other"]
    return pd.DataFrame(rows, columns=columns)
