from pipeline.testing.placers import check_placer
from placewright_tabu import Tabu


def test_tabu_search_keeps_the_promises_of_a_placer():
    check_placer(Tabu(tenure=3))
