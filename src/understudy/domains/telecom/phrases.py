"""Wording. Users say the same thing in many ways; a perfect agent says it in one, so that little data shows the way.

`{line}` and `{bill}` stand for how the user calls the line and the bill.
"""

from collections.abc import Mapping, Sequence

from understudy.domains.telecom.state import SuspendReason, Topic

OWN_NUMBER = (
    "My number is {number}.",
    "I have the number {number}.",
    "You find me under {number}.",
    "My phone number is {number}.",
    "Number: {number}.",
)
NO_OWN_NUMBER = (
    "I do not know my number by heart. My name is {name}, born on {born}.",
    "I never call myself, so I cannot say. I am {name}, born {born}.",
    "Sorry, I do not have it at hand. Name: {name}, date of birth: {born}.",
)
NUMBER_OF_LINE = ("It is {number}.", "It is line {number}.", "The number is {number}.", "That is {number}.")
NO_NUMBER = (
    "I do not know the number. It is the one with the {plan} plan.",
    "No idea. It has the {plan} plan.",
    "I never remember it. I only know that it is on the {plan} plan.",
)
DESCRIBED = ("my line with the {plan} plan", "the line that has the {plan} plan", "the {plan} line")
VAGUE = ("my line", "one of my lines", "a line of mine")
MISTAKEN = ("Sorry, I mixed them up. It is {number}.", "My mistake, I meant {number}.", "Then it must be {number}.")
OF_MONTH = ("my {month} bill", "my bill of {month}", "the bill for {month}")

SUSPEND = (
    "Please suspend {line}.",
    "I want {line} blocked for a while.",
    "Can you suspend {line} for me?",
    "I need {line} suspended.",
    "Could you put {line} on hold?",
)
WHY: Mapping[SuspendReason, Sequence[str]] = {
    "lost phone": ("I have lost the phone.", "I cannot find the phone anywhere.", "The phone got lost."),
    "stolen phone": ("The phone was stolen.", "Somebody took the phone out of my bag.", "A thief has the phone."),
    "long trip": ("I go on a long trip.", "I am away on a long journey.", "I will be travelling for a long time."),
}
DAYS = ("Make it {days} days.", "It should be {days} days.", "I think of {days} days.")
RESUME = (
    "Please resume {line}.",
    "I want to use {line} again.",
    "Can you unblock {line}?",
    "I need {line} back.",
    "Could you switch {line} on again?",
)
PLAN = (
    "I want the {plan} plan for {line}.",
    "Please change {line} to the {plan} plan.",
    "Can you put {line} on the {plan} plan?",
    "I would like to switch {line} to {plan}.",
)
CHEAPEST = (
    "I need at least {data} GB on {line}. Please change it to the cheapest plan that has that.",
    "Please switch {line} to whatever plan is the cheapest with {data} GB or more.",
)
MORE_DATA = (
    "I need {gb} GB more on {line}.",
    "Please add {gb} GB to {line}.",
    "Can I buy {gb} GB of extra data for {line}?",
    "Could you top up {line} with {gb} GB?",
)
MORE_DATA_VAGUE = ("I need more data on {line}.", "I want to buy extra data for {line}.")
HOW_MANY = ("{gb} GB, please.", "I want {gb} GB.", "Make it {gb} GB.")
USED = (
    "How much data have I used on {line}?",
    "What is the data usage of {line} so far?",
    "Tell me how many GB {line} has used, please.",
)
LEFT = (
    "How much data do I have left on {line}?",
    "How many GB remain on {line}?",
    "What is left of the data of {line}?",
)
ROAMING = (
    "I travel to {country} soon. Please enable roaming on {line}.",
    "I want to use {line} in {country}, can you turn on roaming for it?",
    "Can you activate roaming for {line}? I am going to {country}.",
)
SIM = (
    "I need a new SIM card for {line}.",
    "Please send me a new SIM card for {line}.",
    "The SIM card of {line} broke in two, can I have a new one?",
    "I lost the SIM card of {line} and need another one.",
)
REPORT: Mapping[Topic, Sequence[str]] = {
    "weak signal": ("The signal of {line} is weak at home.", "{line} has a bad signal in my house."),
    "wrong bill": ("I was charged wrongly for {line}.", "You bill things for {line} that I never used."),
    "spam calls": ("I get spam calls on {line} all day.", "Somebody keeps calling {line} to sell me things."),
    "dropped calls": ("Calls on {line} keep dropping.", "My calls on {line} break off all the time."),
}
LOOK_INTO = ("Please open a ticket.", "I want a ticket for that.", "Can you open a ticket on it?")
PROGRESS = (
    "What became of my ticket on the {topic}?",
    "I reported the {topic} a while ago, what is the status?",
    "Is there any news on my ticket about the {topic}?",
)
TOTAL = ("How much is {bill}?", "What is the total of {bill}?", "What do I have to pay for {bill} in all?")
POSITION = (
    "How much did you charge for the {item} on {bill}?",
    "What did the {item} cost on {bill}?",
    "You charged me for the {item} on {bill}. How much was that?",
)
MORE_THAN = (
    "How much more was {bill} than {other}, or how much less?",
    "What is the difference between {bill} and {other}?",
)
PAY = (
    "I want to pay {bill}.",
    "Please let me pay {bill}.",
    "Can I pay {bill} now?",
    "I would like to settle {bill}.",
    "How can I pay {bill}? I want to do it right away.",
)
OUTSIDE = (
    "I want to take my number to another operator.",
    "My phone fell into the water and I want to claim the insurance.",
    "A line of mine should belong to my daughter from now on.",
    "I want to complain about your shop.",
    "I need a new contract for a business with many lines.",
    "Please change the name on my account, I have married.",
    "I want to buy a new phone and pay it in instalments.",
)

NO_INTERNET = (
    "I have no internet on my phone since yesterday.",
    "My phone does not get online any more.",
    "No web page opens on my phone since this morning.",
    "The internet on my phone has stopped working.",
    "I cannot get on the internet with my phone.",
)
NO_CALLS = (
    "I cannot make calls with my phone since yesterday.",
    "My phone does not connect any calls.",
    "Nobody can reach me on my phone, and I cannot call anybody.",
    "Calling does not work on my phone any more.",
)
SLOW = (
    "The internet on my phone is terribly slow.",
    "My phone has been very slow on the internet for days.",
    "Videos keep stopping on my phone, the internet is so slow.",
    "Since last week the internet on my phone crawls.",
)
ABROAD = (
    "I am in {place} and have no internet on my phone.",
    "Since I landed in {place} my phone does not get online.",
    "No web page opens on my phone here in {place}.",
    "I am on holiday in {place} and the internet on my phone does not work.",
)
HERE = ("I am in {place}.", "At the moment I am in {place}.", "I am in {place} now.")
WHERE = (*HERE, "In {place}.")
