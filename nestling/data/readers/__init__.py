"""Readers: one file per data set, or per kind of file."""
