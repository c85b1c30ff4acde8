"""What all tests share.  Its place puts `tests/` on the path, so that builders of synthetic tables are
importable from every kind of test; hypothesis runs without deadlines (machines are noisy), and with the same
examples each time in CI.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("sits", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("sits")

# Ignored in a shell's background: what tests start would be deaf to it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
