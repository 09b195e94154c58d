"""`python -m understudy` is `understudy`."""

from understudy.cli.main import main

main()
