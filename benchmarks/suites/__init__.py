"""Suites of `placewright bench` that are not part of the package: tables of papers, and figures of them."""
