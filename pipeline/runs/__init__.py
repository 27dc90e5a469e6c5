"""A run of the five stages on one model: its plan, its steps, its folder and what it says in the end."""
