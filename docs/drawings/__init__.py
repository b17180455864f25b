"""The figures of the documentation, drawn with the library itself."""
