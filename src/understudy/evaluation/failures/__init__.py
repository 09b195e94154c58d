"""Failure analysis: the component at fault, the kind of error, and the message that shows it. Rewards do not use it.

causes    the kinds of errors, and the records
case      one episode for the rules: calls with their results, the agent's texts, and what is missing at the end
rules     find the cause without a model
judge     asks a language model for the cause, beside the rules
explain   finds the failures among episodes
"""
