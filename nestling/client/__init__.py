"""What a client does with its slice: the one training loop, alone or in groups."""
