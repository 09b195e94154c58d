"""Wording. Customers say one thing in many ways; a perfect agent says it in one, so that little data shows the way.

`{order}` stands for how the customer calls the order.
"""

from collections.abc import Mapping, Sequence

from understudy.domains.doordash.state import Dropoff, Target

EMAIL = (
    "My email is {email}.",
    "I am {email}.",
    "My account is {email}.",
    "The email is {email}.",
    "Email: {email}.",
)
NO_EMAIL = (
    "I do not have my email at hand. My phone number is {phone}.",
    "I forgot which email I used. My phone is {phone}.",
    "No idea which email that was, but my number is {phone}.",
)
ORDER = ("It is order {id}.", "The number is {id}.", "Order {id}.", "That is {id}.")
NO_ORDER = (
    "I do not know the number. It is {described}.",
    "No idea. I mean {described}.",
    "I cannot find the number. It is {described}.",
)
VAGUE = ("my order", "one of my orders", "an order of mine")
FROM = ("my order from {restaurant}", "the order from {restaurant}", "my {restaurant} order")
WITH = (
    "my order from {restaurant} with the {item}",
    "the {restaurant} order with the {item}",
    "the order from {restaurant} that has the {item}",
)
MISTAKEN = ("Sorry, I mixed them up. It is order {id}.", "My mistake, I meant {id}.", "Then it must be order {id}.")

CANCEL = (
    "I want to cancel {order}.",
    "Please cancel {order}.",
    "Can you cancel {order} for me?",
    "I don't need {order} any more, please cancel it.",
    "Could you stop {order}? I have to leave.",
    "Something came up, I would like {order} cancelled.",
)
FREE_ONLY = (
    "But only if it is free.",
    "I will not pay a fee for that, though.",
    "If it costs anything, leave it as it is.",
)
ADDRESS = (
    "Please send {order} to {address} instead.",
    "I want {order} delivered to {address}.",
    "Can you change the address of {order} to {address}?",
    "I am somewhere else now. {order} has to go to {address}.",
    "The address of {order} should be {address}.",
)
ADDRESS_VAGUE = ("I want {order} sent to another address.", "The address of {order} is wrong, please change it.")
DROPOFF: Mapping[Dropoff, Sequence[str]] = {
    "hand it to me": (
        "Please hand {order} to me in person.",
        "I want the courier to hand {order} to me.",
        "Nobody should leave {order} anywhere, I want it in my hands.",
    ),
    "leave at the door": (
        "Please leave {order} at the door.",
        "Can the courier leave {order} at my door?",
        "The baby sleeps, so {order} should be left at the door.",
    ),
    "leave with reception": (
        "Please leave {order} with reception.",
        "Can {order} be left at the reception desk?",
        "I am in a meeting. {order} should go to the reception.",
    ),
    "meet outside": (
        "I will meet the courier outside for {order}.",
        "Please tell the courier of {order} to meet me outside.",
        "The bell is broken. For {order} I would rather meet outside.",
    ),
}
DROPOFF_VAGUE = (
    "Please change the delivery instructions of {order}.",
    "The instructions for the courier of {order} are wrong.",
)
HANDED: Mapping[Dropoff, str] = {
    "hand it to me": "The courier should hand it to me.",
    "leave at the door": "Just leave it at the door.",
    "leave with reception": "Leave it with reception.",
    "meet outside": "I will meet the courier outside.",
}
TIP = (
    "Please make the tip of {order} {tip}.",
    "I want the tip for {order} to be {tip}.",
    "Can you change the tip of {order} to {tip}?",
    "The tip for {order} should be {tip}.",
)
TIP_VAGUE = ("I want to change the tip of {order}.", "The tip for {order} is not what I wanted.")
REMOVE = (
    "Please take the {item} out of {order}.",
    "I do not want the {item} in {order} any more.",
    "Can you remove the {item} from {order}?",
    "{order} has the {item} in it by mistake, please remove it.",
)
ADD = (
    "Please add the {item} to {order}.",
    "I forgot the {item} in {order}, can you add that?",
    "Can you put {item} into {order} as well?",
    "I would like {item} in {order} too.",
)
PROMOTION = (
    "I forgot to use my code {code} for {order}.",
    "Can you apply the code {code} to {order}?",
    "Please use the promotion {code} for {order}.",
    "I have the code {code} and want it on {order}.",
)

MISSING = (
    "Somebody forgot the {items} of {order}.",
    "{order} came without the {items}.",
    "I never got the {items} of {order}.",
    "I got something else instead of the {items} of {order}.",
)
BACK: Mapping[Target, Sequence[str]] = {
    "payment": (
        "I want the money back to my {kind}.",
        "Please refund it to my {kind}.",
        "The refund should go to my {kind}.",
    ),
    "credit": ("I will take it as credit.", "Please refund it as credit.", "The refund should come as credit."),
}
LATE = (
    "I want something back for {order}, it took far too long.",
    "{order} was late. What do I get for that?",
    "The delivery of {order} was late, and I want a credit for that.",
    "Why was {order} so late? I want to be compensated.",
)
REDELIVER = (
    "Somebody forgot the {items} of {order}. Please bring that now.",
    "{order} came without the {items}, can you send that again?",
    "I never got the {items} of {order} and am still hungry. Please deliver that.",
    "I got something else instead of the {items} of {order}. I want the right thing brought to me.",
)
OR_CREDIT = "If that cannot be done, refund me as credit."
OUTSIDE: Mapping[str, Sequence[str]] = {
    "accident with a courier": ("Your courier hit my parked car.", "The courier drove into my fence."),
    "allergic reaction": ("I had an allergic reaction to what I ate.", "My son got hives from the food you brought."),
    "food poisoning": ("We all got sick from the food.", "I think that I have food poisoning from my last meal."),
    "rude courier": ("I want to complain about how the courier talked to me.", "Your courier shouted at me."),
    "stolen account": ("Somebody else orders with my account.", "There are orders in my account that are not mine."),
    "tax invoice": ("I need an invoice with my company's name.", "My office needs a tax invoice for my orders."),
    "charged twice": ("My bank says that you charged me twice.", "I was charged twice for the same thing."),
}
"""What only a human can deal with, and how customers put it."""

PLACE = (
    "I would like to order {items} from {restaurant}.",
    "Please order {items} from {restaurant} for me.",
    "Can you get me {items} from {restaurant}?",
    "The app does not work. I want {items} from {restaurant}.",
)
WITH_TIP = ("The tip should be {tip}.", "Add a tip of {tip}.", "{tip} for the courier, please.")
WITH_CODE = ("I have the code {code}.", "Use the promotion {code}.", "My code is {code}.")
PAY = ("I pay with my {kind}.", "Please charge my {kind}.", "Take it from my {kind}.")
AGAIN = (
    "I want the same as in {order} again.",
    "Please order for me again what I had in {order}.",
    "Can you repeat {order} for me?",
    "Send me the same things as in {order}, please.",
)
SAME_PAYMENT = ("I pay as I did then.", "Charge it to what I used then.", "Same payment as last time.")
ALLERGY = (
    "I want the {first} from {restaurant}, but if they put {allergen} in there, then the {second}.",
    "No {allergen} for me. Order the {first} from {restaurant}, or the {second} if there is any in the {first}.",
    "I am allergic to {allergen}. Get me the {first} from {restaurant} if that is safe, else the {second}.",
)
CHEAPEST = (
    "Which {cuisine} restaurant brings me {items} for the least money now, and for how much with delivery?",
    "Who that is open now is cheapest for {items}, delivery included? I mean {cuisine} restaurants.",
    "I look for the cheapest {cuisine} place for {items} right now. What does it cost with delivery?",
)
ORDER_CHEAPEST = (
    "Order {items} from the {cuisine} restaurant that is cheapest now with delivery.",
    "I want {items} from whichever {cuisine} restaurant costs me the least now, delivery included.",
)

PRICE = (
    "How much did I pay for the {item} in {order}?",
    "What did you charge for the {item} of {order}?",
    "What was the price of the {item} in {order}?",
    "I want to know what the {item} from {order} cost.",
)
TOTAL = (
    "How much was {order} altogether?",
    "What did I pay for {order} in all?",
    "What is the total of {order}, with fee and tip?",
    "How much did you charge me for {order}?",
)
WHERE = (
    "Where is {order}?",
    "How long will {order} take?",
    "I wonder where {order} is.",
    "Is {order} on its way?",
    "When do I get {order}?",
)
COST = (
    "How much does {restaurant} charge for the {item}?",
    "What is the price of the {item} at {restaurant}?",
    "I think of getting the {item} from {restaurant}. How much would that be?",
)
VEGAN = (
    "What is the cheapest vegan dish at {restaurant}, and what does it cost?",
    "I eat vegan. What is the cheapest that I can have from {restaurant}, and for how much?",
)
ALLERGENS = (
    "Which allergens are in the {item} at {restaurant}? I would like the price too.",
    "What is the price of the {item} at {restaurant}, and which allergens are in there?",
)
