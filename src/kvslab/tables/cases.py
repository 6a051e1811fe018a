"""The table of public reports: every number that they state, derived again."""

import pandas as pd

from kvslab.published import check_cases


def public_cases_table() -> pd.DataFrame:
    """One row per stated number: what the source prints and what comes out here.

    Columns: id, what, model, release, quantity, formula, unit, stated, derived, verdict,
    source, url.
    """
    return pd.DataFrame(
        [
            {
                "id": result.case.id,
                "what": result.case.what,
                "model": result.case.model,
                "release": result.case.release,
                "quantity": result.number.quantity,
                "formula": result.number.rule,
                "unit": result.number.unit,
                "stated": result.number.value,
                "derived": result.derived,
                "verdict": "reproduced" if result.matches else "differs",
                "source": result.case.source,
                "url": result.case.url,
            }
            for result in check_cases()
        ]
    )
