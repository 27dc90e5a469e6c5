"""What implementations promise, as functions that an implementation passes or fails; for plug-ins and for our own.

    from pipeline.testing.placers import check_placer

    def test_my_placer_keeps_its_promises():
        check_placer(MyPlacer())

Each module holds the promises of one stage: functions that take an implementation and raise AssertionError, with the
promise that was broken. `check_placer` and its like try all of them; docs/plugins.md shows a package that does.
"""
