"""What all tests share: hypothesis without deadlines (machines are noisy), and the same examples in CI."""

import os

from hypothesis import settings

settings.register_profile("sits", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("sits")
