"""Fault injection: short training runs in which one component fails, and checks of how the runs handle it.

The faults come from outside: a wrapping task source, a user of the user's own, an HTTP server, a tool server, packages
in the case's folder, patches in a process of its own, and signals. `cases` lists the cases of the matrix, `run_cases`
runs them.
"""
