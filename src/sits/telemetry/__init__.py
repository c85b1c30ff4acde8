"""What we saw: recorder, store, signals."""
