"""Fault injection: short training runs in which one component fails, and checks of how the runs handle it.

The faults come from outside of the run: a wrapping task source, a user simulator, an HTTP server, a tool server,
packages in the case's folder, patches in the run's process, and signals. `cases` lists the cases of the matrix,
`run_cases` runs them, and `python -m tests.faults` prints the results.
"""
