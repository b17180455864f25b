"""Several small clients of one shape that train together, as one grouped network."""
