"""What `make docs` does beyond Markdown."""
