"""Readers: one module per dataset, or per file format."""
