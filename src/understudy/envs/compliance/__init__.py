"""Compliance: finds where an agent's texts break the policy that every domain has.

A proposal names the write that follows it and no other, a promise is kept by a call, a claim follows the call that it
claims, and no text states contradicting facts. `ConsentGate` finds the violations of calls.

The rules read English texts. Doubtful acts are violations: an act that a text asserts needs a write that matches it, by
the words of the act, of its object and of its amounts. So are words that nobody has named, except plain ones. All texts
are case-folded first, see `normalize_text`, so all patterns are in lower case. What counts as told is in
`envs/told_facts.py`.

violations  `find_violations`: the violations of an episode
proposals   whether a proposal names the write that the user agreed to
names       names of further targets of a proposal
grounds     whether calls bear out the acts that texts assert
acts        the acts that a text asserts: not those that it refuses, asks about or explains
vocabulary  the words of acts, and plain words
calls       the calls of an episode, and whether refunds in texts agree with their results
values      ids in texts, and the amounts, ids, dates and addresses that an agent may state
sentences   sentences and clauses; words that deny or suppose something
"""
