"""Many requests of several models on one machine: queues, and models that slow one another down."""
