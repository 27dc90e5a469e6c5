"""List scheduling by learned scores."""
