"""What every test can rely on."""

import signal

from hypothesis import HealthCheck, settings

# A shell's background job begins with Ctrl-C ignored; tests that press it need Python's own handler, as at a prompt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails because a machine is slow, or by chance.
settings.register_profile("understudy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("understudy")
