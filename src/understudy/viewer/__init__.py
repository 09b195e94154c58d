"""A local web page on runs: curves, episodes, evaluations. `understudy view RUN…`, or one HTML file that opens offline.

library.py   what is looked at: runs and evaluations, each by a key
curves.py    a run's metrics as columns, and its head: config, health, result
index.py     a run's episodes in SQLite, to filter, search and sort
shelf.py     where episodes are read one by one: a run's step, an evaluation
episode.py   one episode: why, what was said and done, what that changed
tokens.py    its tokens; voice.py makes text of them, repairs.py shows how they were read, trainer.py what else they are
group.py     the episodes of one task side by side; advantages.py what training made of them
episodes.py  the answers on single episodes
evaluation.py  the answers on evaluations, and on two of them
answers.py   each path of the API, and what it says
site.py      the page itself: its files, its import map, its content security policy
server.py    the same over HTTP, on loopback only
export.py    the same in one file
static/      the page: ES modules on Preact, no build step; vendor/ is theirs, as npm has it
"""
