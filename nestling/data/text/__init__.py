"""Texts: words by user or as one stream, partitioned among clients."""
