"""`sitsctl trace` and `sitsctl logs`: what a store knows of one request, and what was said."""
