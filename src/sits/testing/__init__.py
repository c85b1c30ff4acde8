"""Fakes and the virtual loop, documented and typed, for our tests and our users'."""
