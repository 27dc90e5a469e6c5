"""The stages of a run: what decides their outcome, what they do, and executing them."""
