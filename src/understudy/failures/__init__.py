"""Why episodes failed: who, what, and the message that shows it. It explains rewards and is no part of them.

causes   what there is to find, and the records of it
case     one episode laid open: its calls with what they came to, its texts, what it lacked in the end
rules    from a case to what went wrong in it, without a model
judge    the same asked of a language model, beside the rules
"""
