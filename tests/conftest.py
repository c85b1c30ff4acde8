"""What all tests share.  Its place puts `tests/` on the path, so that builders of synthetic tables are
importable from every kind of test; hypothesis runs without deadlines (machines are noisy), and with the same
examples each time in CI.
"""

import os

from hypothesis import settings

settings.register_profile("sits", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("sits")
