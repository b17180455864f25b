"""The user's own data, whatever it comes as: one adapter module per kind of source, all of which make `OwnSamples`."""
