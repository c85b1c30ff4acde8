"""`sitsctl signals` and `sitsctl gpu`: what a page, an output or a driver says, in our names and with units."""
