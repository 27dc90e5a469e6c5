"""Where commands are executed, on this machine or on many, and what is given to whom."""
