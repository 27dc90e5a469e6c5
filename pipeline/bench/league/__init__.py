"""Every registered placer on one protocol, without hardware: who wins where, and at what cost.

protocol    the protocol as data: families of graphs and their splits, machines, budgets, parts
entries     who takes part: what the registry knows of placers, and the controls that learners offer
arena       an instance of the protocol, loaded
policies    policies learned on graphs that are not asked about
standings   what cells say together: ratios to a reference with intervals, rates, costs, curves
paired      tests of pairs of placers, instance by instance
ranks       mean ranks of placers with their critical difference, and the best beside the others
disturbed   placements that were found, under other costs and in another simulator
rounds      which cells each part of the protocol wants
tables      the tables of each part, made of the cells
pages       the Markdown pages and their pictures
run         the league: cells that are not on file, then the results
results     the document of the results, and the files that are written
suite       the league as a suite of `placewright bench`
"""
