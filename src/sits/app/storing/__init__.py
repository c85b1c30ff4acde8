"""The command `sitsctl store`: what is in a store, queries as text, and hours that are over."""
