"""The paper's tables, with our values beside the printed ones, and tables of theory."""

from collections.abc import Callable

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.tables.costs import make_costs, make_seconds
from fedmlh.reproduction.tables.outcomes import make_accuracy, make_rounds, make_volume
from fedmlh.reproduction.tables.sizes import make_memory, make_sizes, make_statistics
from fedmlh.reproduction.tables.table import Table
from fedmlh.reproduction.tables.theory import make_lemma1, make_lemma2, make_theorem1, make_theorem2

#: For each item of the report its tables.
TABLES: dict[str, tuple[Callable[[Evidence], Table], ...]] = {
    "table1": (make_statistics,),
    "table2": (make_sizes,),
    "table3": (make_accuracy,),
    "table4": (make_volume,),
    "table5": (make_memory,),
    "table6": (make_rounds,),
    "table7": (make_seconds,),
    "table8": (make_costs,),
    "theory": (make_lemma1, make_lemma2, make_theorem1, make_theorem2),
}
