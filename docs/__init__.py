"""The documentation: Markdown, and the scripts that draw its figures and make its pages."""
