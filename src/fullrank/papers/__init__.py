"""The published tables of the papers that fullrank implements, as experiments that can be run.

A table is a file: what the paper prints in each cell, and the complete experiment behind it. `load_table` reads one,
and its cells hold the experiments. A figure is a table without printed values, and with the way it is drawn.

>>> from fullrank import papers
>>> table = papers.load_table("feddecorr-tpami/table-1")
>>> cell = table.select(["data=cifar10,alpha=0.05,method=fedavg+feddecorr"])[0]
>>> cell.printed.mean, cell.measure, cell.value
(73.06, 'accuracy', 'last')
>>> cell.experiments(seed=0)[0].train.rounds
100
"""

from fullrank.papers.tables import UNITS, Cell, Drawing, Note, Printed, Table, available, figures, load_table

__all__ = ["UNITS", "Cell", "Drawing", "Note", "Printed", "Table", "available", "figures", "load_table"]
