"""Comparing methods fairly: equal graphs, times, evaluators and budgets, several seeds, every result on file.

cases      what placements are made for: a model on a simulated desktop, or on devices of this machine
methods    what is compared, each with its parameters and the coarsening it works on
cells      one method on one case with one seed; each is a file, so that a benchmark can be interrupted
finals     the placements of all methods and every single device, measured against one another
summary    what the cells say together: ratios with intervals, gaps, evaluations until nearly the best
pages      the tables and sentences of results.md, and the plots
hsdag      the benchmark after HSDAG's tables
"""
