"""From a finished run to what runs elsewhere: emit, split, where, compare."""
