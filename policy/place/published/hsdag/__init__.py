"""Graph parsing and the course of learning, as HSDAG has them: what its two variants share."""
