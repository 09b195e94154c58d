"""Wording. Users say the same thing in many ways; a perfect agent says it in one, so that little data shows the way.

`{order}` and `{item}` stand for how the user calls the order and the item.
"""

from collections.abc import Mapping, Sequence

from understudy.domains.retail.state import Reason

ORDER = ("It is order {id}.", "The number is {id}.", "Order {id}.", "That is {id}.")
NO_ORDER = (
    "I do not know the number. It is the one with the {item}.",
    "No idea. There is a {item} in it.",
    "I lost the number. I only know that it has the {item}.",
)
VAGUE = ("my order", "one of my orders", "an order of mine")
DESCRIBED = ("the order with the {item}", "my order with the {item}", "the order that has the {item}")
SOMEWHERE = ("one of my orders", "an order of mine", "an earlier order")
MISTAKEN = ("Sorry, I mixed them up. It is order {id}.", "My mistake, I meant {id}.", "Then it must be order {id}.")

WHY: Mapping[Reason, Sequence[str]] = {
    "no longer needed": (
        "I no longer need it.",
        "I do not need it any more.",
        "I have no use for it now.",
        "My plans changed and I don't need it.",
        "It is not needed any longer.",
    ),
    "ordered by mistake": (
        "I ordered it by mistake.",
        "It was a mistake.",
        "I clicked the wrong button.",
        "I never meant to order it.",
        "That order was an accident.",
    ),
}
CANCEL = (
    "I want to cancel {order}.",
    "Please cancel {order}.",
    "Can you cancel {order} for me?",
    "I would like {order} cancelled.",
    "I need to cancel {order}.",
    "Could you stop {order}?",
)
RETURN = (
    "I want to return the {item} from {order}.",
    "Please take back the {item} of {order}.",
    "Can I send back the {item} from {order}?",
    "The {item} in {order} is not what I hoped for, I want to return it.",
    "I would like to return the {item} of {order}.",
    "I need to give back the {item} from {order}.",
)
RETURN_VAGUE = ("I want to return something from {order}.", "There is an item in {order} that I want to send back.")
EXCHANGE = (
    "I want to exchange the {item} from {order} for the {option} one.",
    "Can I swap the {item} of {order} for a {option} one?",
    "Please exchange the {item} in {order}, I need the {option} one.",
    "The {item} of {order} should have been {option}, please exchange it.",
)
CHANGE_ITEM = (
    "Please change the {item} in {order} to the {option} one.",
    "I want the {item} of {order} to be {option} instead.",
    "Can you make the {item} in {order} a {option} one?",
    "I picked the wrong {item} in {order}, it should be {option}.",
)
OTHER_VAGUE = ("I want another variant of the {item} in {order}.", "The {item} in {order} is not the one I want.")
ADDRESS = (
    "Please send {order} to {address} instead.",
    "I want {order} delivered to {address}.",
    "Can you change the address of {order} to {address}?",
    "I have moved. {order} has to go to {address}.",
    "Ship {order} to {address}, please.",
    "The address of {order} should be {address}.",
)
ADDRESS_VAGUE = ("I want {order} sent to another address.", "The address of {order} is wrong, please change it.")
PROFILE = (
    "I have moved, my new address is {address}.",
    "Please change my own address to {address}.",
    "Can you put {address} as the address of my account?",
    "My account should have the address {address}.",
)
PROFILE_VAGUE = ("I have moved, please change the address of my account.", "My account has my old address.")
PAYMENT = (
    "I want to pay {order} with my {kind} instead.",
    "Please charge {order} to my {kind}.",
    "Can you switch the payment of {order} to my {kind}?",
    "{order} should be paid with my {kind}.",
)
PAYMENT_VAGUE = ("I want to pay {order} in another way.", "Please change the payment of {order}.")
PRICE = (
    "How much was the {item} in {order}?",
    "What did I pay for the {item} of {order}?",
    "What is the price of the {item} in {order}?",
    "I want to know what the {item} from {order} cost.",
)
TOTAL = (
    "How much was {order} altogether?",
    "What is the total of {order}?",
    "What did I pay for {order} in all?",
    "Tell me the total of {order}, please.",
)
STATUS = (
    "Where is {order}?",
    "What is the status of {order}?",
    "Has {order} been shipped?",
    "I wonder what happened to {order}.",
    "Is {order} on its way?",
)
WHERE_TO = ("To which address does {order} go?", "Where will {order} be delivered?", "What address is on {order}?")
PAID_WITH = ("How did I pay for {order}?", "Which payment did I use for {order}?", "What was {order} paid with?")
STOCK = (
    "How much is the {option} {item} now?",
    "What does a {option} {item} cost?",
    "I think of buying a {option} {item}. What is its price?",
)
SOLD = (
    "Which of these do you sell, and what does the cheapest one cost: {things}?",
    "I am looking for one of these: {things}. What is the lowest price?",
)
UNSOLD = ("piano", "canoe", "bicycle", "sofa", "ladder", "microscope", "trampoline", "chainsaw")
OUTSIDE = (
    "My parcel arrived broken and I want compensation.",
    "I need an invoice with my company's name.",
    "Please change the email of my account.",
    "A parcel that should be here never arrived.",
    "I want to complain about your courier.",
    "I have a question about the warranty of something I bought.",
    "Somebody else used my account.",
)
KINDS: Mapping[str, str] = {"card": "credit card", "gift": "gift card", "paypal": "PayPal account"}
