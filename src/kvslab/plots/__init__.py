"""Figures: one function each, returning `Axes`.

One fixed colour for each thing a layer stores (Okabe and Ito's colour-blind-safe
palette); padding is hatched; bounds are grey and dashed and carry their value.
A figure has no title: its caption is where it is shown.
"""

from kvslab.plots.charts import ablation_figure, headline_figure, interval_figure
from kvslab.plots.fitting import breakdown_figure, pareto_figure, peers_figure, requests_figure
from kvslab.plots.kernels import devices_figure, recall_figure, rounding_figure, speed_figure
from kvslab.plots.models import models_figure
from kvslab.plots.rows import microblock_figure, page_figure, rows_figure
from kvslab.plots.serving import formulas_figure, occupancy_figure, price_figure
from kvslab.plots.slabs import padding_figure, slab_figure
from kvslab.plots.style import COLOURS, save_figure, use_style

__all__ = [
    "COLOURS",
    "ablation_figure",
    "breakdown_figure",
    "devices_figure",
    "formulas_figure",
    "headline_figure",
    "interval_figure",
    "microblock_figure",
    "models_figure",
    "occupancy_figure",
    "padding_figure",
    "page_figure",
    "pareto_figure",
    "peers_figure",
    "price_figure",
    "recall_figure",
    "requests_figure",
    "rounding_figure",
    "rows_figure",
    "save_figure",
    "slab_figure",
    "speed_figure",
    "use_style",
]
