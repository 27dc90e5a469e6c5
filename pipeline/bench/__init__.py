"""Comparing methods fairly: equal graphs, times, evaluators and budgets, several seeds, every result on file.

suites    what `placewright bench NAME` runs, by name; only the league is part of the package
cases     what placements are made for
methods   what is compared, each with its parameters and the coarsening it works on
cells     one method on one case with one seed; each is a file, so that a benchmark can be interrupted
running   cells run in this process, or in those of workers
summary   ratios with intervals, and tables in Markdown
league    every registered placer on one protocol
"""
