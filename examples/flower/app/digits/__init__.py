"""HeteroFL on handwritten digits, on three devices."""
