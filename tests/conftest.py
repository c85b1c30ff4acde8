"""Puts `tests/` on the path, so that builders of synthetic tables are importable from every kind of test."""
