"""The benchmark after HSDAG's tables.

cases         the networks on a simulated desktop, or on devices of this machine
methods       what is compared, and the optimum that it is measured against
run           the suite: cells that are not on file, finals on devices, then the results
finals        the placements of all methods and every single device, measured against one another
summary       what the cells say together: ratios, gaps, evaluations until nearly the best
pages         the tables and sentences of results.md
paper_tables  tables 2, 3 and 5 of the paper
"""
