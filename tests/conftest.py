"""What every test can rely on."""

import signal

# A shell's background job begins with Ctrl-C ignored; tests that press it need Python's own handler, as at a prompt.
signal.signal(signal.SIGINT, signal.default_int_handler)
