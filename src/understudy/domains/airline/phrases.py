"""Wording. Users say the same thing in many ways; a perfect agent says it in one, so that little data shows the way.

`{trip}` stands for how the user calls the reservation.
"""

from collections.abc import Mapping, Sequence

from understudy.domains.airline.state import Reason

CODE = ("It is {id}.", "The code is {id}.", "Reservation {id}.", "That is {id}.")
NO_CODE = (
    "I do not have the code. It is the trip to {city}.",
    "No idea. It is the one that goes to {city}.",
    "I lost the code. I only know that I fly to {city}.",
)
VAGUE = ("my reservation", "one of my reservations", "my trip")
DESCRIBED = ("my trip to {city}", "my reservation to {city}", "the trip to {city} that I booked")
MISTAKEN = ("Sorry, I mixed them up. It is {id}.", "My mistake, I meant {id}.", "Then it must be {id}.")

WHY: Mapping[Reason, Sequence[str]] = {
    "change of plans": (
        "My plans have changed.",
        "I have to be somewhere else then.",
        "The meeting was called off.",
        "I cannot get those days off work.",
        "We decided to stay at home.",
    ),
    "illness": (
        "I have fallen ill.",
        "I am sick and cannot travel.",
        "My doctor says that I must not fly.",
        "I am ill.",
        "I caught the flu.",
    ),
    "flight cancelled": (
        "You cancelled my flight.",
        "I heard that my flight was cancelled by you.",
        "The airline has cancelled the flight.",
        "Your app says that the flight is off.",
    ),
}
CANCEL = (
    "I want to cancel {trip}.",
    "Please cancel {trip} and give me my money back.",
    "Can you cancel {trip} for me?",
    "I would like {trip} cancelled.",
    "I need to cancel {trip}.",
    "I cannot make it, please cancel {trip}.",
)
INSURE = (
    "I want to add insurance to {trip}.",
    "Please insure {trip}.",
    "Can I still get insurance for {trip}?",
    "I forgot the insurance when I booked {trip}. Please add it.",
    "I would like {trip} insured, in case I fall ill.",
)
BAGS = (
    "I want to add {bags} to {trip}.",
    "Please add {bags} to {trip}.",
    "I need {bags} on {trip} after all.",
    "Can you put {bags} on {trip}?",
    "I have packed too much, I need {bags} for {trip}.",
)
BAGS_VAGUE = ("I want to add checked bags to {trip}.", "I have more to take along on {trip} than I thought.")
NAME = (
    "The name {old} on {trip} is wrong, it has to be {new}.",
    "Please change the name on {trip} from {old} to {new}.",
    "On {trip} it says {old}, but it should say {new}.",
    "I got a passenger's name wrong on {trip}: {new} instead of {old}, please.",
)
CABIN = (
    "I want to change {trip} to {cabin}.",
    "Please switch {trip} to {cabin}.",
    "Can you move {trip} to {cabin}?",
    "I would rather fly in {cabin} on {trip}.",
    "How about {cabin} for {trip}? Please change it.",
)
FLIGHTS = (
    "I want to move {which} {trip} to {date}, {best}.",
    "Please change {which} {trip} to {date}, {best}.",
    "Can you rebook {which} {trip} to {date}, {best}?",
    "I have to fly on {date} instead, {best}. Please change {which} {trip}.",
)
FLIGHTS_VAGUE = ("I want to fly on another day on {which} {trip}.", "I need another date for {which} {trip}.")
WHICH = {"only": "the flight of", "outbound": "the outbound flight of", "return": "the return flight of"}
COMPENSATION = (
    "I want to be compensated for the {what} flight of {trip}.",
    "The {what} flight of {trip} ruined my day. What do I get for it?",
    "I ask for compensation, because the flight of {trip} was {what}.",
    "My flight of {trip} was {what}. I want a certificate for that.",
    "Do I get a voucher for the {what} flight of {trip}? I want one.",
)
BOOK = (
    "I want to book a trip from {origin} to {goal} on {date} in {cabin}, {best}.",
    "Please book me from {origin} to {goal} on {date}, {cabin}, {best}.",
    "I need to get from {origin} to {goal} on {date}, {best}. Please book it in {cabin}.",
    "Can you book {cabin} from {origin} to {goal} on {date}, {best}?",
)
BACK = ("And back on {date}, {best}.", "I fly back on {date}, {best}.")
ALONE = ("I fly alone.", "It is just me.", "Only for me.")
TOGETHER = ("I fly with {other}.", "{other} comes with me.", "It is for me and {other}.")
WITH_BAGS = ("There will be {bags}.", "We check in {bags} in all.", "Add {bags}, please.")
INSURED = ("I want the insurance too.", "With insurance, please.")
PAY = ("I pay with my {kind}.", "Charge my {kind}.", "My {kind} pays.")
CERTIFICATE = ("Use my travel certificate first.", "I also have a travel certificate to use up.")
BEST: Mapping[str, Sequence[str]] = {
    "cheapest": ("whatever is cheapest", "the cheapest one", "at the lowest fare"),
    "earliest": ("as early as possible", "the first flight of the day", "the earliest one"),
    "latest": ("as late as possible", "the last flight of the day", "the latest one"),
}
"""What a user wants of several offers."""
STATUS = (
    "Is {which} {trip} on time?",
    "What is the status of {which} {trip}?",
    "How does {which} {trip} stand?",
    "I want to know whether {which} {trip} is as planned.",
)
DEPARTS = ("What time do I take off on {trip}?", "At what time does {trip} begin?")
ARRIVES = ("When do I get there on {trip}?", "What time do I land on {trip}?")
PAID = (
    "What did I pay for {trip} in all?",
    "How much was {trip}?",
    "I need to know what {trip} cost me.",
)
FARE = (
    "How much is the cheapest direct flight from {origin} to {goal} on {date} in {cabin}?",
    "What does it cost to fly from {origin} to {goal} on {date} in {cabin}, direct and as cheap as possible?",
    "I think of flying from {origin} to {goal} on {date}. What is the lowest fare of a direct flight in {cabin}?",
)
QUOTE = (
    "What would {number} of us pay for the cheapest direct flight from {origin} to {goal} on {date} in {cabin}, "
    "insurance for all included?",
    "How much is it for {number} people from {origin} to {goal} on {date}, direct, as cheap as possible, in {cabin}, "
    "all of us insured?",
)
BAGS_PRICE = (
    "What would {bags} cost on {trip}?",
    "How much do you charge for {bags} on {trip}?",
    "I may take {bags} on {trip}. How much would that be?",
)
OUTSIDE = (
    "My suitcase did not arrive and I want to file a claim.",
    "My bag came out of the plane broken.",
    "I need an invoice with my company's name.",
    "Please change the email of my account.",
    "I want to complain about your crew.",
    "I want to take my dog along in the cabin.",
    "My daughter is nine and has to fly alone.",
    "We are a school class of twenty and need a group booking.",
    "Somebody else used my account.",
)
KINDS: Mapping[str, str] = {"card": "credit card", "gift": "gift card", "certificate": "travel certificate"}
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}


def count(number: int, thing: str) -> str:
    """As in "1 bag" and "2 bags"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def more_bags(number: int) -> str:
    """As customers say it."""
    return count(number, "more checked bag")
