"""What holds for every test."""

import signal

# A shell starts what runs in its background with Ctrl-C ignored, and programs inherit that. Tests
# that interrupt programs must find it as a terminal's shell would have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
