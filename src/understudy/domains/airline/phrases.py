"""Wording of airline tasks. `{trip}` stands for the user's words for the reservation.

Every third phrase of a tuple is held out for the test split (see `PhraseSampler`).
"""

from collections.abc import Mapping, Sequence

from understudy.domains.airline.state import Reason

CODE = (
    *("It's {id}.", "The code is {id}.", "The reservation code is {id}."),
    *("Reservation {id}.", "That's {id}.", "My confirmation says {id}."),
    *("The confirmation code is {id}.", "I have {id} as the code.", "My booking code is {id}."),
    *("It's reservation {id}.", "The booking is {id}.", "It says {id} here."),
)
NO_CODE = (
    *(
        "I don't have the code. It's the trip to {city}.",
        "No idea. It's the one that goes to {city}.",
        "I can't find the code. I'm flying to {city}.",
    ),
    *(
        "I lost the code. All I know is that I fly to {city}.",
        "I don't remember the code, but it's my {city} trip.",
        "I deleted the email with the code. The flight goes to {city}.",
    ),
    *(
        "I don't have it with me. It's for {city}.",
        "Not sure about the code. It's the reservation for {city}.",
        "I never wrote it down. I'm going to {city} on that one.",
    ),
)
VAGUE = (
    *("my reservation", "one of my reservations", "a reservation of mine"),
    *("my trip", "a trip I booked", "my booking"),
    *("one of my trips", "one of my bookings", "a booking of mine"),
)
DESCRIBED = (
    *("my trip to {city}", "my reservation to {city}", "my booking to {city}"),
    *("the trip to {city} that I booked", "my {city} trip", "the reservation I have for {city}"),
    *("my upcoming {city} reservation", "the booking for {city}", "the trip I booked to {city}"),
)
MISTAKEN = (
    *("Sorry, I mixed them up. It's {id}.", "My mistake, I meant {id}.", "Oops, wrong code. It's {id}."),
    *("Then it must be {id}.", "Sorry, that was the wrong one. I mean {id}.", "My bad, the right one is {id}."),
    *("I got them confused. It's {id}.", "You're right, it's {id}.", "I gave you the wrong code. It should be {id}."),
)

WHY: Mapping[Reason, Sequence[str]] = {
    "change of plans": (
        *(
            "My plans have changed.",
            "I have to be somewhere else then.",
            "Something came up and I had to change my plans.",
        ),
        *("The meeting was called off.", "I can't get those days off work.", "My schedule changed."),
        *(
            "We decided to stay home.",
            "I have to stay here for work after all.",
            "The event I was going to isn't happening.",
        ),
        *(
            "My plans fell through.",
            "I'm not going on vacation after all.",
            "I won't be able to travel because of work.",
        ),
        *("We changed our vacation plans.", "A family event got in the way.", "I don't need to go there anymore."),
    ),
    "illness": (
        *("I've fallen ill.", "I'm sick and can't travel.", "I'm not well enough to fly."),
        *("My doctor says that I must not fly.", "I'm ill.", "I got sick."),
        *("I came down with the flu.", "I'm in the hospital and can't travel.", "I'm too sick to travel."),
        *(
            "I caught pneumonia.",
            "I've been sick since last week and can't go.",
            "My doctor told me not to travel because of my illness.",
        ),
        *("I'm down with a fever.", "I got very ill.", "I have the flu."),
    ),
    "flight cancelled": (
        *(
            "You cancelled my flight.",
            "I heard that my flight was cancelled by you.",
            "I got a message that you cancelled the flight.",
        ),
        *(
            "The airline cancelled the flight.",
            "Your app says that the flight is cancelled.",
            "You called off my flight.",
        ),
        *(
            "I was told that you cancelled my flight.",
            "My flight isn't going, you cancelled it.",
            "The flight was cancelled by the airline.",
        ),
        *(
            "According to your website, my flight is cancelled.",
            "I got an email that the flight is cancelled.",
            "Your airline cancelled the flight on me.",
        ),
    ),
}
CANCEL = (
    *(
        "I want to cancel {trip}.",
        "Please cancel {trip} and give me my money back.",
        "I'd like to cancel {trip}, please.",
    ),
    *("Can you cancel {trip} for me?", "I would like {trip} cancelled.", "Could you please cancel {trip}?"),
    *("I need to cancel {trip}.", "I can't make it. Please cancel {trip}.", "I have to cancel {trip}."),
    *("Please cancel {trip}.", "I need {trip} cancelled and refunded.", "Can I cancel {trip}?"),
    *(
        "I want {trip} cancelled.",
        "I'd like a refund for {trip}. Please cancel it.",
        "I won't be flying. Please cancel {trip}.",
    ),
    *(
        "How can I cancel {trip}?",
        "I won't be able to go, so please cancel {trip}.",
        "Is it possible to cancel {trip}?",
    ),
)
KEEP_IT = (
    "I'll keep it.",
    "I want to keep it.",
    "I'm keeping it.",
    "Don't cancel it.",
    "Let me keep it.",
    "I'd rather keep it.",
)
INSURE = (
    *("I want to add insurance to {trip}.", "Please insure {trip}.", "I'd like to have insurance on {trip}."),
    *(
        "Can I still get insurance for {trip}?",
        "I forgot the insurance when I booked {trip}. Please add it.",
        "Could you add insurance to {trip}?",
    ),
    *(
        "I'd like {trip} insured, in case I get sick.",
        "Please add travel insurance to {trip}.",
        "I need insurance for {trip}.",
    ),
    *(
        "Can you put insurance on {trip}?",
        "I want to insure {trip}.",
        "I'd feel better with insurance on {trip}. Please add it.",
    ),
    *(
        "Is it possible to insure {trip}?",
        "I want insurance for {trip} after all.",
        "Please get me insurance for {trip}.",
    ),
)
BAGS = (
    *("I want to add {bags} to {trip}.", "Please add {bags} to {trip}.", "I'd like to add {bags} to {trip}."),
    *("I need {bags} on {trip} after all.", "Can you put {bags} on {trip}?", "Could you add {bags} to {trip}?"),
    *(
        "I packed too much, so I need {bags} for {trip}.",
        "I need to add {bags} to {trip}.",
        "I'll need {bags} on {trip}.",
    ),
    *(
        "Can I add {bags} to {trip}?",
        "I'm bringing {bags} on {trip}. Please add them to the reservation.",
        "I want to bring {bags} on {trip}.",
    ),
    *(
        "Is it possible to add {bags} to {trip}?",
        "I'd like {bags} for {trip}, please.",
        "Please book {bags} for {trip}.",
    ),
)
BAGS_VAGUE = (
    *(
        "I want to add checked bags to {trip}.",
        "I have more luggage for {trip} than I thought.",
        "I need more checked baggage on {trip}.",
    ),
    *(
        "Can I add some bags to {trip}?",
        "I'd like to bring more bags on {trip}.",
        "I want to check more bags on {trip}.",
    ),
)
HOW_MANY = (
    *("{bags}.", "{bags}, please.", "I need {bags}."),
    *("I want {bags}.", "It's {bags}.", "That would be {bags}."),
)
CHARGE_TO = (
    *("Charge it to my {kind}.", "Please charge my {kind}.", "Use my {kind} to pay for it."),
    *("I want to pay with my {kind}.", "Put it on my {kind}.", "It should be charged to my {kind}."),
)
NAME = (
    *(
        "The name {old} on {trip} is wrong. It should be {new}.",
        "Please change the name on {trip} from {old} to {new}.",
    ),
    *(
        "There's a mistake in a name on {trip}: {old} should be {new}.",
        "On {trip} it says {old}, but it should say {new}.",
    ),
    *(
        "I got a passenger's name wrong on {trip}. It's {new} instead of {old}.",
        "Can you change {old} to {new} on {trip}?",
    ),
    *(
        "I need the name {old} on {trip} changed to {new}.",
        "Could you fix a name on {trip}? It should be {new}, not {old}.",
    ),
    *(
        "The passenger on {trip} is {new}, not {old}. Please correct it.",
        "{trip} has the name {old} on it. It needs to be {new}.",
    ),
    *("I'd like to change a passenger name on {trip} from {old} to {new}.", "Please correct {old} to {new} on {trip}."),
)
CABIN = (
    *(
        "I want to change {trip} to {cabin}.",
        "Please switch {trip} to {cabin}.",
        "I'd like to change {trip} to {cabin}.",
    ),
    *("Can you move {trip} to {cabin}?", "I'd rather fly in {cabin} on {trip}.", "Could you rebook {trip} in {cabin}?"),
    *(
        "I'd like to fly {cabin} on {trip} instead.",
        "I want to be in {cabin} on {trip}.",
        "Can I change {trip} to {cabin}?",
    ),
    *(
        "Please put us in {cabin} for {trip}.",
        "How about {cabin} for {trip}? Please change it.",
        "Is {cabin} possible for {trip}? I'd like to change.",
    ),
    *("I need {trip} changed to {cabin}.", "I decided on {cabin} for {trip}.", "Please move {trip} into {cabin}."),
)
FLIGHTS = (
    *("I want to move {which} {trip} to {date}, {best}.", "Please change {which} {trip} to {date}, {best}."),
    *("I'd like to change {which} {trip} to {date}, {best}.", "Can you rebook {which} {trip} to {date}, {best}?"),
    *(
        "I have to fly on {date} instead, {best}. Please change {which} {trip}.",
        "Could you move {which} {trip} to {date}, {best}?",
    ),
    *(
        "I need {which} {trip} to be on {date}, {best}.",
        "I want to fly on {date} instead, {best}. Please change {which} {trip}.",
    ),
    *("Please rebook {which} {trip} for {date}, {best}.", "Is it possible to change {which} {trip} to {date}, {best}?"),
    *(
        "I need to change {which} {trip}. I want to fly on {date}, {best}.",
        "Can I switch {which} {trip} to {date}, {best}?",
    ),
)
FLIGHTS_VAGUE = (
    *("I want to fly on another day on {which} {trip}.", "I need a different date for {which} {trip}."),
    *("I'd like to change the date of {which} {trip}.", "Can I move {which} {trip} to another day?"),
    *("I can't fly on that day. Please change {which} {trip}.", "I need to reschedule {which} {trip}."),
)
NEW_DATE = (
    *("To {date}.", "On {date}.", "{date}, please."),
    *("I want to fly on {date}.", "{date}.", "It should be {date}."),
)
DIFFERENCE_BY = (
    *(
        "The difference goes to my {kind}.",
        "Use my {kind} for the difference.",
        "Please settle the difference with my {kind}.",
    ),
    *(
        "Charge any difference to my {kind}.",
        "My {kind} should be used for the difference.",
        "Put the difference on my {kind}.",
    ),
)
WHICH = {"only": "the flight of", "outbound": "the outbound flight of", "return": "the return flight of"}
COMPENSATION = (
    *(
        "I want to be compensated for the {what} flight of {trip}.",
        "The {what} flight of {trip} ruined my day. What do I get for it?",
    ),
    *("I'd like some compensation for the {what} flight of {trip}.",),
    *(
        "I'm asking for compensation because the flight of {trip} was {what}.",
        "My flight of {trip} was {what}. I want a certificate for that.",
    ),
    *("I think I should be compensated, since the flight of {trip} was {what}.",),
    *(
        "Do I get a voucher for the {what} flight of {trip}? I want one.",
        "I expect compensation for the {what} flight of {trip}.",
    ),
    *("What compensation do I get for the {what} flight of {trip}? I'd like to claim it.",),
    *(
        "The flight of {trip} was {what}, so I want compensation.",
        "I want to claim compensation for {trip}, because the flight was {what}.",
    ),
    *("I'm entitled to something, since the flight of {trip} was {what}. Please compensate me.",),
    *(
        "I'd like to claim compensation for the {what} flight of {trip}.",
        "I want a voucher because my flight of {trip} was {what}.",
    ),
    *("How will you make up for the {what} flight of {trip}? I'd like compensation.",),
)
BOOK = (
    *(
        "I want to book a trip from {origin} to {goal} on {date} in {cabin}, {best}.",
        "Please book me from {origin} to {goal} on {date}, {cabin}, {best}.",
    ),
    *("I'd like to fly from {origin} to {goal} on {date} in {cabin}, {best}. Please book it.",),
    *("I need to get from {origin} to {goal} on {date}, {best}. Please book it in {cabin}.",),
    *("Can you book {cabin} from {origin} to {goal} on {date}, {best}?",),
    *("I need a flight from {origin} to {goal} on {date}, in {cabin}, {best}. Can you book that?",),
    *("I'd like to book a flight in {cabin} from {origin} to {goal} on {date}, {best}.",),
    *("Could you get me from {origin} to {goal} on {date} in {cabin}, {best}?",),
    *("Please book a trip for {date}, from {origin} to {goal} in {cabin}, {best}.",),
    *("I'm looking to book {cabin} on {date} from {origin} to {goal}, {best}.",),
    *("I want to fly {cabin} from {origin} to {goal} on {date}, {best}. Please book that for me.",),
    *("Can you help me book a flight from {origin} to {goal} for {date}, {cabin}, {best}?",),
)
BACK = (
    *("And back on {date}, {best}.", "I fly back on {date}, {best}.", "The return should be on {date}, {best}."),
    *(
        "For the return, {date}, {best}.",
        "I want to come back on {date}, {best}.",
        "Then back again on {date}, {best}.",
    ),
)
ALONE = (
    *("I fly alone.", "It's just me.", "I'm traveling by myself."),
    *("Only for me.", "I'm flying alone.", "Just one passenger, me."),
    *("I'm the only passenger.", "It's for one person, me.", "Nobody else is coming."),
)
TOGETHER = (
    *("I'm flying with {other}.", "{other} is coming with me.", "{other} and I are traveling together."),
    *("It's for me and {other}.", "I'm traveling with {other}.", "There are two of us, me and {other}."),
    *("{other} will join me.", "It's for two, {other} and me.", "My travel companion is {other}."),
)
WITH_BAGS = (
    *("There will be {bags}.", "We'll check {bags} in total.", "I'd like {bags} with that."),
    *("Add {bags}, please.", "With {bags} in total.", "Please include {bags}."),
    *("I need {bags} in total.", "It's {bags} altogether.", "We have {bags}."),
)
INSURED = (
    *("I want the insurance too.", "With insurance, please.", "Please include insurance."),
    *("I'd also like insurance.", "And I want it insured.", "Add the insurance as well."),
)
PAY = (
    *("I'll pay with my {kind}.", "Charge my {kind}.", "Please use my {kind}."),
    *("Put it on my {kind}.", "I want to pay with my {kind}.", "I'd like to use my {kind} for the payment."),
    *("I'm paying with my {kind}.", "Take it from my {kind}.", "You can charge it to my {kind}."),
)
CERTIFICATE = (
    *(
        "Use my travel certificate first.",
        "I also have a travel certificate to use up.",
        "Please apply my travel certificate.",
    ),
    *(
        "I'd like to use my travel certificate for it.",
        "I have a travel certificate that should go toward it.",
        "My travel certificate should be used first.",
    ),
)
BEST: Mapping[str, Sequence[str]] = {
    "cheapest": (
        *("whatever is cheapest", "the cheapest one", "the cheapest you have"),
        *("at the lowest fare", "as cheap as possible", "for the lowest price"),
        *("the lowest fare there is", "the cheapest option", "whichever has the lowest fare"),
    ),
    "earliest": (
        *("as early as possible", "the first flight of the day", "the earliest departure"),
        *("the earliest one", "the first one in the morning", "leaving as early as possible"),
        *("whichever leaves first", "the earliest flight", "the first departure of the day"),
    ),
    "latest": (
        *("as late as possible", "the last flight of the day", "the latest departure"),
        *("the latest one", "the last one of the day", "leaving as late as possible"),
        *("whichever leaves last", "the latest flight", "the last departure of the day"),
    ),
}
"""Which of several offers the user wants."""
VAGUE_BEST: Mapping[str, Sequence[str]] = {
    "cheapest": (
        "the cheapest one",
        "whatever is cheapest",
        "the lowest fare",
        "the cheapest flight",
        "the cheapest option",
        "whichever is cheapest",
    ),
    "earliest": (
        "the earliest one",
        "the first flight of the day",
        "the earliest flight",
        "to leave as early as possible",
        "the first one in the morning",
        "the earliest departure",
    ),
    "latest": (
        "the latest one",
        "the last flight of the day",
        "the latest flight",
        "to leave as late as possible",
        "the last one of the day",
        "the latest departure",
    ),
}
"""The same wish as a sentence of its own: "I'd like …"."""
STATUS = (
    *(
        "Is {which} {trip} on time?",
        "What is the status of {which} {trip}?",
        "Can you check the status of {which} {trip}?",
    ),
    *(
        "How does {which} {trip} look?",
        "I want to know whether {which} {trip} is going as planned.",
        "Is there any change to {which} {trip}?",
    ),
    *(
        "Will {which} {trip} leave on time?",
        "Could you tell me the status of {which} {trip}?",
        "Is {which} {trip} running on schedule?",
    ),
    *(
        "Any news about {which} {trip}?",
        "I'd like the current status of {which} {trip}.",
        "Is {which} {trip} still on schedule?",
    ),
)
DEPARTS = (
    *("What time do I take off on {trip}?", "When does {trip} depart?", "What's the departure time of {trip}?"),
    *("At what time does {trip} start?", "When do I leave on {trip}?", "What time does my flight leave on {trip}?"),
)
ARRIVES = (
    *("When do I get there on {trip}?", "What time do I land on {trip}?", "What's the arrival time of {trip}?"),
    *("When does {trip} arrive?", "At what time do I arrive on {trip}?", "What time does my flight get in on {trip}?"),
)
PAID = (
    *("What did I pay for {trip} in total?", "How much was {trip}?", "How much did you charge me for {trip}?"),
    *("I need to know what {trip} cost me.", "What was the total price of {trip}?", "What did {trip} cost altogether?"),
    *(
        "Can you tell me how much I paid for {trip}?",
        "How much did {trip} cost?",
        "What's the total I paid for {trip}?",
    ),
)
FARE = (
    *("How much is the cheapest direct flight from {origin} to {goal} on {date} in {cabin}?",),
    *("What does it cost to fly direct from {origin} to {goal} on {date} in {cabin}, as cheap as possible?",),
    *("Can you tell me the lowest direct fare from {origin} to {goal} on {date} in {cabin}?",),
    *(
        "I'm thinking of flying from {origin} to {goal} on {date}. What is the lowest fare of a "
        "direct flight in {cabin}?",
    ),
    *("What's the lowest price for a nonstop flight from {origin} to {goal} on {date} in {cabin}?",),
    *("How much would the cheapest nonstop flight in {cabin} from {origin} to {goal} be on {date}?",),
    *("For {date}, what's the cheapest direct flight from {origin} to {goal} in {cabin}?",),
    *("I might fly from {origin} to {goal} on {date}. How much is the cheapest direct flight in {cabin}?",),
    *("I'd like to know the cheapest direct fare in {cabin} from {origin} to {goal} on {date}.",),
)
QUOTE = (
    *(
        "What would {number} of us pay for the cheapest direct flight from {origin} to {goal} on "
        "{date} in {cabin}, including insurance for everyone?",
    ),
    *(
        "How much is it for {number} people from {origin} to {goal} on {date}, direct, as cheap as "
        "possible, in {cabin}, with insurance for all of us?",
    ),
    *(
        "We're {number} people who want to fly direct from {origin} to {goal} on {date} in "
        "{cabin}, as cheap as possible, all of us insured. What's the total?",
    ),
    *(
        "What's the total for {number} passengers on the cheapest direct flight from {origin} to "
        "{goal} on {date} in {cabin}, insurance for everyone included?",
    ),
    *(
        "There are {number} of us. How much is the cheapest direct flight in {cabin} from {origin} "
        "to {goal} on {date}, with insurance for each of us?",
    ),
    *(
        "I need a price for {number} insured passengers: the cheapest direct flight from {origin} "
        "to {goal} on {date} in {cabin}. How much is that?",
    ),
)
BAGS_PRICE = (
    *(
        "What would {bags} cost on {trip}?",
        "How much do you charge for {bags} on {trip}?",
        "What's the price for {bags} on {trip}?",
    ),
    *(
        "I may bring {bags} on {trip}. How much would that be?",
        "How much are {bags} on {trip}?",
        "If I bring {bags} on {trip}, what does that cost?",
    ),
    *(
        "What do {bags} cost for {trip}?",
        "How much extra would {bags} be on {trip}?",
        "Could you tell me the price of {bags} on {trip}?",
    ),
)
OUTSIDE = (
    *(
        "My suitcase didn't arrive and I want to file a claim.",
        "My bag came off the plane broken.",
        "My luggage got lost on the way.",
    ),
    *(
        "I need an invoice with my company's name on it.",
        "Please change the email on my account.",
        "I want to report damage to my suitcase.",
    ),
    *(
        "I want to complain about your crew.",
        "I want to take my dog along in the cabin.",
        "I'd like to make a complaint about the service on board.",
    ),
    *(
        "My daughter is nine and has to fly alone.",
        "We're a school class of twenty and need a group booking.",
        "I need to book for a group of thirty.",
    ),
    *(
        "Somebody else used my account.",
        "My baggage never showed up at the carousel.",
        "Can I bring my cat on the flight?",
    ),
    *(
        "I think someone has hacked my account.",
        "I'd like a receipt made out to my business.",
        "My son is ten and will be traveling without us.",
    ),
    *(
        "I want to bring my dog on board.",
        "How do I change the email address of my account?",
        "There's a new email address I want on my account.",
    ),
    *(
        "The wheels of my suitcase broke off on your flight.",
        "We're a choir and want to travel as a group.",
        "There are logins on my account that aren't mine.",
    ),
    *(
        "Your staff were rude to me and I want to complain.",
        "I need an official invoice for my employer.",
        "My stroller was damaged on the flight.",
    ),
)
KINDS: Mapping[str, str] = {"card": "credit card", "gift": "gift card", "certificate": "travel certificate"}
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}


def format_count(number: int, thing: str) -> str:
    """Return a count as in "1 bag" and "2 bags"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def format_more_bags(number: int) -> str:
    """Return a number of further bags as customers say it."""
    return format_count(number, "more checked bag")
