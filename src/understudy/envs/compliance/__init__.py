"""Compliance: finds where an agent's texts break the policy that every domain has.

A proposal names the write that follows it and no other, a promise is kept by a call, a claim follows the call that it
claims, and no text states contradicting facts. `ConsentGate` finds the violations of calls.

The rules read English texts. Doubtful cases are no violations: a polite agent may choose its own words. What an agent
may say of a call follows from the tool's name, description and arguments, and from the domain policy. All texts are
case-folded first, see `normalize_text`, so all patterns are in lower case.

violations       `find_violations`: the violations of an episode
proposals        whether a proposal names the write that the user agreed to
further_targets  what a proposal names beside the target of that write
refunds          whether amounts that a text pays back agree with the results of writes
promises         announced actions that no call carries out
claims           claimed actions that no call has taken
contradictions   facts that contradict each other
known_values     the amounts, ids, dates and addresses that an agent may state
calls            the calls of an episode, and the actions that they carry out
announcements    the actions that a text announces
actions          verbs of actions, and what a tool does by its name
sentences        sentences, clauses, negations and conditions
ids              ids and other targets in texts
"""
