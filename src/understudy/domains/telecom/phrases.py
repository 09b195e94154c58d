"""Wording of telecom tasks. `{line}` and `{bill}` stand for the user's words for the line and the bill.

Every third phrase of a tuple is held out for the test split (see `PhraseSampler`).
"""

from collections.abc import Mapping, Sequence

from understudy.domains.telecom.state import SuspendReason, Topic

OWN_NUMBER = (
    *("My number is {number}.", "My phone number is {number}.", "You can find me under {number}."),
    *("I have the number {number}.", "The number on my account is {number}.", "My account is under {number}."),
    *("My mobile number is {number}.", "Number: {number}.", "I'm on {number}."),
    *("You can look me up by {number}.", "My line is {number}.", "The phone number is {number}."),
    *("I'm a customer with the number {number}.", "My cell is {number}.", "You have me under {number}."),
)
NO_OWN_NUMBER = (
    *(
        "I don't know my number by heart. My name is {name}, born on {born}.",
        "I never call myself, so I can't say. I'm {name}, born {born}.",
    ),
    *("I don't remember my number. It's {name}, and my date of birth is {born}.",),
    *("Sorry, I don't have it handy. Name: {name}, date of birth: {born}.",),
    *("I can't recall the number. My name is {name} and I was born on {born}.",),
    *("No idea what my number is. Can you look up {name}, born {born}?",),
    *("I don't have the number with me. I'm {name}, date of birth {born}.",),
    *("I always forget it. The name is {name}, born on {born}.",),
    *("I'm not sure about the number. You can search for {name}, born {born}.",),
)
NAME = ("My name is {name}.", "I'm {name}.", "The name is {name}.", "It's {name}.", "Name: {name}.", "This is {name}.")
BORN = (
    *("I was born on {born}.", "My date of birth is {born}.", "Date of birth: {born}."),
    *("Born on {born}.", "My birthday is {born}.", "It's {born}."),
)
NUMBER_OF_LINE = (
    *("It's {number}.", "It's line {number}.", "The line is {number}."),
    *("The number is {number}.", "That's {number}.", "I mean {number}."),
    *("It's the one ending in the number {number}.", "Line {number}.", "That would be {number}."),
    *("I'm talking about {number}.", "The number of the line is {number}.", "It's this one: {number}."),
)
NO_NUMBER = (
    *("I don't know the number. It's the one with the {plan} plan.", "No idea. It has the {plan} plan."),
    *("I can't tell you the number, but it's on the {plan} plan.",),
    *("I never remember it. All I know is that it's on the {plan} plan.",),
    *("I don't have the number. It's my line with the {plan} plan.",),
    *("Not sure what the number is. The plan is {plan}.",),
    *("I forgot the number. It's the {plan} plan.", "I only know the plan, it's {plan}."),
    *("I don't know it by heart. It's the one I have the {plan} plan for.",),
)
DESCRIBED = (
    *("my line with the {plan} plan", "the line that has the {plan} plan", "the line on the {plan} plan"),
    *("the {plan} line", "my {plan} line", "the line I have on the {plan} plan"),
    *("my line on the {plan} plan", "the one with the {plan} plan", "the line with {plan}"),
)
VAGUE = (
    *("my line", "one of my lines", "a line on my account"),
    *("a line of mine", "one of my numbers", "one of the lines on my account"),
    *("one of the lines I have", "a number of mine", "one line of mine"),
)
MISTAKEN = (
    *("Sorry, I mixed them up. It's {number}.", "My mistake, I meant {number}.", "Oops, wrong number. It's {number}."),
    *(
        "Then it must be {number}.",
        "Sorry, that was the wrong one. I mean {number}.",
        "My bad, the right one is {number}.",
    ),
    *(
        "I got them confused. It's {number}.",
        "You're right, it's {number}.",
        "I gave you the wrong number. It should be {number}.",
    ),
)
OF_MONTH = (
    *("my {month} bill", "my bill for {month}", "the {month} bill"),
    *("the bill for {month}", "the bill from {month}", "my bill from {month}"),
    *("the bill I got for {month}", "my phone bill for {month}", "the phone bill from {month}"),
)
BILL_NUMBER = (
    *("It's bill {id}.", "Bill {id}.", "The bill number is {id}."),
    *("That's bill {id}.", "It's number {id}.", "I mean bill {id}."),
)
BILL_MONTH = (
    *("The one for {month}.", "It's the {month} one.", "The one from {month}."),
    *("The {month} bill.", "I mean the one for {month}.", "It's for {month}."),
)
BILL_MONTHS = (
    *("The ones for {month} and {other}.", "{month} and {other}.", "The bills from {month} and {other}."),
    *("I mean {month} and {other}.", "Those for {month} and {other}.", "The {month} one and the {other} one."),
)

SUSPEND = (
    *("Please suspend {line}.", "I want {line} blocked for a while.", "I'd like to suspend {line}."),
    *("Can you suspend {line} for me?", "I need {line} suspended.", "Could you pause {line} for a while?"),
    *("Could you put {line} on hold?", "I need you to block {line}.", "I want to put {line} on hold."),
    *("Please block {line} for now.", "I'd like {line} to be suspended.", "Is it possible to suspend {line}?"),
    *("I have to suspend {line}.", "Can I put {line} on pause?", "I want you to suspend {line}."),
)
WHY: Mapping[SuspendReason, Sequence[str]] = {
    "lost phone": (
        *("I lost the phone.", "I can't find the phone anywhere.", "I've misplaced the phone."),
        *("The phone got lost.", "The phone is gone, I must have left it somewhere.", "I left the phone on the bus."),
        *("I lost my phone somewhere yesterday.", "I have no idea where the phone is.", "My phone is missing."),
    ),
    "stolen phone": (
        *("The phone was stolen.", "Somebody took the phone out of my bag.", "Someone stole my phone."),
        *("A thief has the phone.", "My phone got stolen at the gym.", "I was robbed and they took my phone."),
        *("Someone grabbed my phone and ran.", "My phone was taken from my car.", "The phone has been stolen."),
    ),
    "long trip": (
        *("I'm going on a long trip.", "I'll be away on a long trip.", "I won't need it while I'm on a long trip."),
        *(
            "I'll be traveling for a long time.",
            "I'm leaving for an extended trip.",
            "I'm about to travel for quite a while.",
        ),
        *("I'm off on a long journey.", "I'm going abroad for a long trip.", "I'll be gone on a long vacation."),
    ),
}
DAYS = (
    *("Make it {days} days.", "It should be {days} days.", "For {days} days, please."),
    *("I need it for {days} days.", "Let's say {days} days.", "About {days} days would be right."),
    *("{days} days should be enough.", "I'd like it to be {days} days.", "I need {days} days."),
)
KEEP_ACTIVE = (
    "I'll keep it active.",
    "I want to keep it active.",
    "Please leave it active.",
    "Let's keep it active.",
    "It can stay active.",
    "Keep it active, please.",
)
RESUME = (
    *("Please resume {line}.", "I want to use {line} again.", "I'd like to have {line} back on."),
    *("Can you unblock {line}?", "I need {line} back.", "Can you take the suspension off {line}?"),
    *("Could you switch {line} back on?", "Please reactivate {line}.", "I need {line} to be active again."),
    *("Can I get {line} turned back on?", "I'd like to resume {line}.", "Could you lift the suspension on {line}?"),
    *("Please turn {line} on again.", "I want {line} reactivated.", "I'd like to start using {line} again."),
)
PLAN = (
    *(
        "I want the {plan} plan for {line}.",
        "Please change {line} to the {plan} plan.",
        "I'd like {line} on the {plan} plan.",
    ),
    *(
        "Can you put {line} on the {plan} plan?",
        "I would like to switch {line} to {plan}.",
        "Could you move {line} to the {plan} plan?",
    ),
    *(
        "I need {line} switched to the {plan} plan.",
        "Please switch {line} over to {plan}.",
        "Can I change {line} to the {plan} plan?",
    ),
    *(
        "I've decided on the {plan} plan for {line}.",
        "Let's move {line} to the {plan} plan.",
        "The {plan} plan would be better for {line}. Please change it.",
    ),
)
CHEAPEST = (
    *("I need at least {data} GB on {line}. Please change it to the cheapest plan that has that.",),
    *("Please switch {line} to whichever plan is the cheapest with {data} GB or more.",),
    *("What I need on {line} is {data} GB or more, as cheap as possible. Please change the plan.",),
    *("Can you put {line} on the cheapest plan with at least {data} GB?",),
    *("I want the cheapest plan for {line} that gives me at least {data} GB.",),
    *("Find me the cheapest plan with {data} GB or more and move {line} to it, please.",),
)
MORE_DATA = (
    *("I need {gb} GB more on {line}.", "Please add {gb} GB to {line}.", "I'd like an extra {gb} GB on {line}."),
    *(
        "Can I buy {gb} GB of extra data for {line}?",
        "Could you top up {line} with {gb} GB?",
        "Can I get {gb} more GB for {line}?",
    ),
    *(
        "I want to add {gb} GB of data to {line}.",
        "I'd like to buy {gb} GB for {line}.",
        "Please give {line} another {gb} GB.",
    ),
    *(
        "I need an additional {gb} GB on {line}.",
        "Could you add {gb} GB of data to {line}?",
        "I want {gb} GB of extra data on {line}.",
    ),
)
MORE_DATA_VAGUE = (
    *("I need more data on {line}.", "I want to buy extra data for {line}.", "I'd like to top up the data on {line}."),
    *("Can I get more data for {line}?", "Please add some data to {line}.", "How do I get extra data on {line}?"),
)
HOW_MANY = (
    *("{gb} GB, please.", "I want {gb} GB.", "I'd like {gb} GB."),
    *("Make it {gb} GB.", "{gb} GB should do.", "Let's do {gb} GB."),
    *("I'll take {gb} GB.", "Add {gb} GB.", "{gb} GB would be great."),
)
USED = (
    *(
        "How much data have I used on {line}?",
        "What is the data usage on {line} so far?",
        "How much data has been used on {line}?",
    ),
    *(
        "Tell me how many GB {line} has used, please.",
        "Can you check how much data I've used on {line}?",
        "I'd like to know the data usage of {line}.",
    ),
    *(
        "How many GB have I gone through on {line}?",
        "What's my data usage on {line}?",
        "How much of the data on {line} have I used up?",
    ),
)
LEFT = (
    *(
        "How much data do I have left on {line}?",
        "How many GB remain on {line}?",
        "How much data is still available on {line}?",
    ),
    *(
        "What's left of the data on {line}?",
        "Can you tell me how much data {line} has left?",
        "I want to know my remaining data on {line}.",
    ),
    *(
        "How many GB can I still use on {line}?",
        "What's the remaining data on {line}?",
        "How much data is left on {line}?",
    ),
)
ROAMING = (
    *("I'm traveling to {country} soon. Please enable roaming on {line}.",),
    *("I want to use {line} in {country}. Can you turn on roaming for it?",),
    *("I have a trip to {country} coming up and need roaming on {line}.",),
    *("Can you activate roaming for {line}? I'm going to {country}.",),
    *("I'm flying to {country} and want {line} to work there. Please turn on roaming.",),
    *("I'll be in {country} next week. Could you switch on roaming for {line}?",),
    *("Please turn roaming on for {line}, I'm off to {country}.",),
    *("I need roaming on {line} for my vacation in {country}.",),
    *("I'm visiting {country} and would like to have roaming on {line}.",),
)
SIM = (
    *("I need a new SIM card for {line}.", "Please send me a new SIM card for {line}."),
    *("Could you mail me a new SIM card for {line}?",),
    *("The SIM card for {line} broke. Can I have a new one?", "I lost the SIM card for {line} and need another one."),
    *("My SIM card for {line} is missing. I need a new one.",),
    *("I'd like a replacement SIM card for {line}.", "My new phone needs another SIM card for {line}."),
    *("Can I get a new SIM card for {line}?", "I damaged the SIM card of {line}. Please send me a new one."),
    *("How do I get a new SIM card for {line}?", "I want to order a new SIM card for {line}."),
)
REPORT: Mapping[Topic, Sequence[str]] = {
    "weak signal": (
        *(
            "The signal of {line} is weak at home.",
            "{line} has a bad signal in my house.",
            "I barely get a signal on {line} at home.",
        ),
        *(
            "Reception on {line} is poor in my apartment.",
            "I only get one bar on {line} at home.",
            "The signal on {line} is really weak.",
        ),
    ),
    "wrong bill": (
        *("I was charged the wrong amount for {line}.", "You billed me for things on {line} that I never used."),
        *(
            "The charges for {line} are wrong.",
            "There's a mistake on the bill for {line}.",
            "My bill for {line} isn't right.",
        ),
        *("I was billed incorrectly for {line}.",),
    ),
    "spam calls": (
        *(
            "I get spam calls on {line} all day.",
            "Somebody keeps calling {line} to sell me things.",
            "{line} gets one spam call after another.",
        ),
        *(
            "I'm getting a lot of spam calls on {line}.",
            "Telemarketers keep calling {line}.",
            "Spam callers won't leave {line} alone.",
        ),
    ),
    "dropped calls": (
        *(
            "Calls on {line} keep dropping.",
            "My calls on {line} get cut off all the time.",
            "{line} drops calls constantly.",
        ),
        *(
            "I keep losing calls on {line}.",
            "My calls on {line} drop after a minute.",
            "Every other call on {line} gets dropped.",
        ),
    ),
}
LOOK_INTO = (
    *("Please open a ticket.", "I want a ticket for that.", "I'd like to have a ticket opened."),
    *("Can you open a ticket for it?", "Could you create a ticket?", "Please file a ticket for this."),
    *("I'd like you to open a ticket.", "Can I get a ticket for this?", "Please put in a ticket."),
)
PROGRESS = (
    *("What happened to my ticket about the {topic}?", "I reported the {topic} a while ago. What's the status?"),
    *("How is my ticket on the {topic} coming along?", "Is there any news on my ticket about the {topic}?"),
    *("Can you check the status of my {topic} ticket?", "Has anything been done about my {topic} ticket?"),
    *(
        "I'd like an update on my ticket about the {topic}.",
        "What's the status of the ticket I opened about the {topic}?",
    ),
    *("Any progress on the {topic} I reported?",),
)
TOTAL = (
    *("How much is {bill}?", "What is the total of {bill}?", "What does {bill} come to?"),
    *(
        "What do I have to pay for {bill} in total?",
        "Can you tell me how much {bill} is?",
        "What's the amount due on {bill}?",
    ),
    *("How much do I owe for {bill}?", "I'd like to know the total of {bill}.", "What's the total amount of {bill}?"),
)
POSITION = (
    *("How much did you charge for the {item} on {bill}?", "What did the {item} cost on {bill}?"),
    *("On {bill}, how much was the {item}?", "You charged me for the {item} on {bill}. How much was that?"),
    *("How much was I charged for the {item} on {bill}?", "What was the charge for the {item} on {bill}?"),
    *("Can you tell me the price of the {item} on {bill}?", "I want to know what the {item} on {bill} cost me."),
    *("What's the amount for the {item} on {bill}?",),
)
MORE_THAN = (
    *("How much more or less was {bill} than {other}?", "What is the difference between {bill} and {other}?"),
    *("By how much do {bill} and {other} differ?", "How far apart are {bill} and {other}?"),
    *(
        "Can you compare {bill} with {other}? I want to know the difference.",
        "How big is the difference between {bill} and {other}?",
    ),
)
PAY = (
    *("I want to pay {bill}.", "Please let me pay {bill}.", "I'd like to pay {bill} today."),
    *("Can I pay {bill} now?", "I would like to pay off {bill}.", "I need to take care of {bill}. How do I pay?"),
    *("How can I pay {bill}? I want to do it right away.", "I'd like to settle {bill}.", "I want to get {bill} paid."),
    *("I'm ready to pay {bill}.", "Can you help me pay {bill}?", "Could I pay {bill} right now?"),
    *("I need to pay {bill}.", "I forgot to pay {bill} and want to do it now.", "Please help me settle {bill}."),
)
OUTSIDE = (
    *(
        "I want to take my number to another carrier.",
        "My phone fell into the water and I want to file an insurance claim.",
    ),
    *(
        "I'd like to transfer my number to a different provider.",
        "I want to put one of my lines in my daughter's name.",
    ),
    *("I want to complain about one of your stores.", "I want to switch carriers and keep my number."),
    *("I need a new contract for a business with many lines.", "Please change the name on my account, I got married."),
    *(
        "I want my brother to take over one of my contracts.",
        "I want to buy a new phone and pay for it in installments.",
    ),
    *(
        "I dropped my phone and the screen is cracked. I want to use my insurance.",
        "The staff in your store were rude and I want to complain.",
    ),
    *("I'd like to sign up for a new contract for my son.", "I want to upgrade to a new phone on a payment plan."),
    *("I got divorced and need the account in my new name.", "My company needs ten new lines."),
    *("How do I make a complaint about your service?", "I want to hand my contract over to a friend."),
    *("I need to file a claim for a broken phone.",),
)

NO_INTERNET = (
    *(
        "I've had no internet on my phone since yesterday.",
        "My phone doesn't get online anymore.",
        "There's no internet on my phone.",
    ),
    *("No web page has opened on my phone since this morning.", "The internet on my phone has stopped working."),
    *("My phone won't load anything from the internet.", "I can't get on the internet with my phone."),
    *("Nothing loads on my phone, it has no internet.", "My mobile internet isn't working."),
    *(
        "My phone can't connect to the internet.",
        "I can't open any website on my phone.",
        "My phone is offline all the time.",
    ),
    *(
        "The internet connection on my phone is dead.",
        "Web pages don't open on my phone at all.",
        "I'm not getting any internet on my phone.",
    ),
)
NO_CALLS = (
    *("I haven't been able to make calls on my phone since yesterday.", "My phone doesn't connect any calls."),
    *("Calls won't go through on my phone.", "Nobody can reach me on my phone, and I can't call anybody."),
    *("Calling doesn't work on my phone anymore.", "My phone can't make or receive calls."),
    *(
        "I can't call anyone from my phone.",
        "Every call I try to make on my phone fails.",
        "My phone won't let me place calls.",
    ),
    *(
        "I can't make any calls with my phone.",
        "None of my calls go through.",
        "I've been unable to call anyone since this morning.",
    ),
)
SLOW = (
    *(
        "The internet on my phone is terribly slow.",
        "My phone's internet has been very slow for days.",
        "The internet on my phone is painfully slow.",
    ),
    *(
        "Videos keep stopping on my phone because the internet is so slow.",
        "The internet on my phone has been crawling since last week.",
    ),
    *(
        "Pages take forever to load on my phone, the internet is that slow.",
        "I have internet on my phone, but it's extremely slow.",
    ),
    *("My mobile internet is really slow lately.", "Why is the internet on my phone so slow?"),
    *("The internet on my phone has become slow.", "Everything loads very slowly on my phone's internet."),
    *("My phone's internet speed is awfully slow.",),
)
ABROAD = (
    *("I'm in {place} and have no internet on my phone.", "Since I landed in {place}, my phone doesn't get online."),
    *("I'm traveling in {place}, and my phone has no internet.", "No web page opens on my phone here in {place}."),
    *(
        "I'm on vacation in {place} and the internet on my phone doesn't work.",
        "My phone can't get on the internet in {place}.",
    ),
    *("I arrived in {place} and my phone won't go online.", "I can't use the internet on my phone in {place}."),
    *("My phone's internet doesn't work here in {place}.", "Here in {place} my phone has no internet at all."),
    *(
        "I'm visiting {place}, and I can't get online with my phone.",
        "I'm in {place} right now and can't open any website on my phone.",
    ),
)
HERE = (
    *("I'm in {place}.", "At the moment I'm in {place}.", "I'm in {place} right now."),
    *("I'm in {place} now.", "I'm currently in {place}.", "I'm here in {place}."),
    *("My location is {place}.", "I am in {place} at the moment.", "You'll find me in {place}."),
)
WHERE = (*HERE, "In {place}.", "{place}.", "It's {place}.")
