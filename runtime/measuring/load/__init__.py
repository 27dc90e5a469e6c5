"""Several models under load, in one process or one each: requests in open and closed loops."""
