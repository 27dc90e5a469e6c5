"""placewright: finds which device should run which operation of a neural network, by measuring it."""
