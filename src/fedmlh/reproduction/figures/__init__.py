"""The paper's figures from our measurements, and figures of theory; matplotlib draws them (extra `plot`)."""

from collections.abc import Callable

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures.drawing import Figure
from fedmlh.reproduction.figures.labels import draw_frequencies, draw_partition
from fedmlh.reproduction.figures.theory import draw_lemma1, draw_lemma2, draw_theorem1, draw_theorem2
from fedmlh.reproduction.figures.training import draw_bytes, draw_rounds, draw_sensitivity

#: For each item of the report its figures.
FIGURES: dict[str, tuple[Callable[[Evidence], Figure], ...]] = {
    "figure1": (draw_frequencies,),
    "figure2": (draw_partition,),
    "figure3": (draw_rounds,),
    "figure4": (draw_bytes,),
    "figure5": (draw_sensitivity,),
    "theory": (draw_lemma1, draw_lemma2, draw_theorem1, draw_theorem2),
}
