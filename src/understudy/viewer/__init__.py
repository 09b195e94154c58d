"""A local web page for runs: curves, episodes and evaluations. `understudy view` serves it, or exports one HTML file.

library.py         finds the runs and evaluations to show, and gives each a key
run_api.py         a run: config, health, result, and its metrics as columns
run_text.py        a run as plain text
evaluation_api.py  evaluations, and the comparison of two agents
index.py           a SQLite index of a run's episodes; query.py filters, searches, sorts and counts them
episodes/          single episodes: messages, state changes, tokens, log-probabilities, advantages, groups
api.py             the routes of the API
site.py            the page's files, import map and content security policy
server.py          the HTTP server, on loopback only
export.py          the page as one HTML file
static/            the page's ES modules on Preact, without a build step; vendor/ has libraries unchanged from npm
"""
