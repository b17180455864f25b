"""Merges that withstand some wrong or hostile updates, coordinate by coordinate over its holders."""
