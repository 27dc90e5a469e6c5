"""What operations cost on the devices, and which precisions a model tolerates."""
