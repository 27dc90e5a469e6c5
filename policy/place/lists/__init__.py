"""List scheduling: schedules made operation by operation."""
