"""The command line, with one small module per verb.

It imports the other packages only when a verb runs, so that each verb loads only what it needs.
"""

import sys

if sys.platform == "win32":  # before the imports of modules that Windows does not have
    print("understudy: Windows is not supported; install WSL 2 (wsl --install), and understudy there", file=sys.stderr)
    sys.exit(2)
