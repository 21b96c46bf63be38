"""The peers that benchmarks/peers.py measures: one module for each, and what they have in common."""
