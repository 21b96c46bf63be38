"""Seeded misfortune for a run, real or simulated, and a verdict on what became of it."""
