"""What the outputs of a model are compared with."""
