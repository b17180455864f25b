"""Real devices, reached over Flower: the same rounds, with checked messages instead of worker processes."""
