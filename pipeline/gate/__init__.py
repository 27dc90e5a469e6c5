"""The gate for change: two versions of a runtime, two exports or two settings, measured against each other."""
