"""The simulator of HETERO: sub-graphs run one after another."""
