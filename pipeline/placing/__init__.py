"""Running placers: rehearsed, one after another, in rounds with measurements between, until finalists are left."""
