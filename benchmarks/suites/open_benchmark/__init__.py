"""The open benchmark: instances with best known values and bounds, which anybody's placements are checked against."""
