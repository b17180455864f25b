"""Texts: words by user or as one stream, dealt out to clients."""
