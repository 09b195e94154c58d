"""Wording of retail tasks. Users say the same thing in many ways; the gold agent in one, so that little data suffices.

`{order}` and `{item}` stand for the user's words for the order and the item. Every third phrase of a tuple is held out
for the test split (see `PhraseSampler`).
"""

from collections.abc import Mapping, Sequence

from understudy.domains.retail.state import Reason

ORDER = (
    *("It's order {id}.", "The number is {id}.", "The order number is {id}."),
    *("Order {id}.", "That's {id}.", "It says {id} on the confirmation."),
    *("The order is {id}.", "My order number is {id}.", "I have {id} as the order number."),
    *("It's number {id}.", "I have it here: {id}.", "The confirmation email says {id}."),
)
NO_ORDER = (
    *("I don't know the number. It's the one with the {item}.", "No idea. The {item} was in it."),
    *(
        "I don't have the order number. I ordered the {item}.",
        "I lost the number. All I know is that I got the {item}.",
    ),
    *(
        "I can't find the number. It's the order with the {item}.",
        "Not sure about the number, but the {item} is in that order.",
    ),
    *("I deleted the email with the number. It had the {item} in it.", "I don't remember it. It was for the {item}."),
    *("I don't have it in front of me. It's the order that includes the {item}.",),
)
VAGUE = (
    *("my order", "one of my orders", "an order I placed"),
    *("an order of mine", "a recent order", "my recent order"),
    *("an order from your store", "something I ordered", "one of my recent orders"),
)
DESCRIBED = (
    *("the order with the {item}", "my order with the {item}", "the order that includes the {item}"),
    *("the order that has the {item}", "my {item} order", "the order for the {item}"),
    *("the one where I bought the {item}", "the order I placed for the {item}", "my order that has the {item} in it"),
)
VAGUE_WITH_ITEM = (
    *("one of my orders", "an order of mine", "a recent order"),
    *("an earlier order", "an order I placed", "a previous order"),
    *("my last few orders", "an order from a while ago", "an older order"),
)
MISTAKEN = (
    *("Sorry, I mixed them up. It's order {id}.", "My mistake, I meant {id}.", "Oops, wrong number. It's {id}."),
    *("Then it must be order {id}.", "Sorry, that was the wrong one. I mean {id}.", "My bad, the right one is {id}."),
    *(
        "I misread it. The number is {id}.",
        "You're right, it's {id}.",
        "I gave you the wrong number. It should be {id}.",
    ),
)

WHY: Mapping[Reason, Sequence[str]] = {
    "no longer needed": (
        *("I no longer need it.", "I don't need it anymore.", "I have no use for it anymore."),
        *(
            "I don't have any use for it now.",
            "My plans changed and I don't need it.",
            "I found I don't need it after all.",
        ),
        *("It's no longer needed.", "I won't be needing it.", "Things have changed, and I don't need it now."),
        *(
            "I already have one now, so I don't need it.",
            "I just don't need it.",
            "I got it as a gift, so there's no need for it.",
        ),
        *("There's no need for it anymore.", "I don't need this order anymore.", "I realized I can do without it."),
    ),
    "ordered by mistake": (
        *("I ordered it by mistake.", "It was a mistake.", "I placed it by accident."),
        *("I clicked the wrong button.", "I never meant to order it.", "I didn't mean to place this order."),
        *("That order was an accident.", "I ordered this accidentally.", "It was an accidental click."),
        *("I hit the order button by accident.", "It was ordered in error.", "My kid placed it by mistake."),
        *(
            "I meant to save it for later, not order it.",
            "I ordered the wrong thing.",
            "I pressed buy without meaning to.",
        ),
    ),
}
CANCEL = (
    *("I want to cancel {order}.", "Please cancel {order}.", "Could you cancel {order}, please?"),
    *("Can you cancel {order} for me?", "I would like {order} cancelled.", "I'd like to cancel {order}."),
    *("I need to cancel {order}.", "Could you stop {order}?", "I need {order} to be cancelled."),
    *("Can I still cancel {order}?", "I have to cancel {order}.", "Is it possible to cancel {order}?"),
    *("Please cancel {order} for me.", "I want {order} cancelled.", "How do I cancel {order}?"),
    *("I'd like you to cancel {order}.", "Can you please cancel {order}?", "Would you cancel {order} for me?"),
)
RETURN = (
    *("I want to return the {item} from {order}.", "Please take back the {item} from {order}."),
    *("I'd like to return the {item} I got in {order}.", "Can I send back the {item} from {order}?"),
    *(
        "The {item} in {order} isn't what I hoped for, and I want to return it.",
        "Can I return the {item} from {order}?",
    ),
    *("I would like to return the {item} from {order}.", "I need to send the {item} from {order} back."),
    *("How do I return the {item} from {order}?", "I'm not happy with the {item} from {order}. I want to return it."),
    *("Please help me return the {item} from {order}.", "I want my money back for the {item} from {order}."),
    *("I want to give back the {item} from {order}.", "The {item} from {order} has to go back."),
    *("I'd like a refund for the {item} from {order}.", "Could I return the {item} that came in {order}?"),
    *("I don't like the {item} from {order}, so I want to return it.", "I need to return the {item} from {order}."),
)
RETURN_VAGUE = (
    *("I want to return something from {order}.", "There's an item in {order} that I want to send back."),
    *("I'd like to return an item from {order}.", "I need to send back part of {order}."),
    *("Something in {order} isn't right for me, and I want to return it.", "Can I return an item from {order}?"),
)
EXCHANGE = (
    *(
        "I want to exchange the {item} from {order} for the {option} one.",
        "Can I swap the {item} from {order} for the {option} one?",
    ),
    *("I'd like to exchange the {item} from {order} for the {option} version.",),
    *("Please exchange the {item} from {order}. I need the {option} one.",),
    *("The {item} from {order} should have been {option}. Please exchange it.",),
    *("Could I trade the {item} from {order} for the {option} one?",),
    *("I need the {option} {item} instead of the one from {order}. Please exchange it.",),
    *("I'd rather have the {option} {item} than the one in {order}. Can I exchange it?",),
    *("Can you exchange the {item} from {order}? I want the {option} one.",),
    *("The {item} that came with {order} isn't right. I want to exchange it for the {option} one.",),
    *("I got the wrong kind of {item} in {order}. Please swap it for the {option} one.",),
    *("Is it possible to exchange the {item} from {order} for the {option} one?",),
)
CHANGE_ITEM = (
    *(
        "Please change the {item} in {order} to the {option} one.",
        "I want the {item} in {order} to be {option} instead.",
    ),
    *(
        "Could you switch the {item} in {order} to the {option} one?",
        "Can you change the {item} in {order} to {option}?",
    ),
    *("I picked the wrong {item} in {order}. It should be {option}.",),
    *("I'd like the {option} {item} in {order} instead.",),
    *("I meant to order the {option} {item} in {order}. Please change it.",),
    *("Please make the {item} in {order} the {option} one.",),
    *("I chose the wrong option for the {item} in {order}. I want the {option} one.",),
    *("Can you swap the {item} in {order} for the {option} one before it ships?",),
    *("I need to change the {item} in {order}. I want it in {option}.",),
    *("Could the {item} in {order} be the {option} one instead?",),
)
OTHER_VAGUE = (
    *("I want a different version of the {item} in {order}.", "The {item} in {order} is not the one I want."),
    *("I picked the wrong kind of {item} in {order} and want another one.",),
    *(
        "I'd like the {item} in {order} in a different option.",
        "I want to switch the {item} in {order} to another one.",
    ),
    *("I need a different {item} than the one in {order}.",),
)
ADDRESS = (
    *("Please send {order} to {address} instead.", "I want {order} delivered to {address}."),
    *("Could you have {order} delivered to {address}?", "Can you change the address of {order} to {address}?"),
    *("I moved. {order} has to go to {address}.", "I need {order} to go to {address} instead."),
    *("Ship {order} to {address}, please.", "The address for {order} should be {address}."),
    *("I'd like {order} shipped to {address}.", "Please change the delivery address of {order} to {address}."),
    *("I won't be home. Please send {order} to {address}.", "Can {order} be shipped to {address} instead?"),
    *("I entered the wrong address for {order}. It should be {address}.", "Please deliver {order} to {address}."),
    *("The right address for {order} is {address}.", "Please update the address on {order} to {address}."),
    *("I put the wrong address on {order}. Please use {address}.", "Can you redirect {order} to {address}?"),
)
ADDRESS_VAGUE = (
    *("I want {order} sent to another address.", "The address on {order} is wrong. Please change it."),
    *("I'd like to change the address on {order}.", "Can you send {order} somewhere else?"),
    *("I need to update the delivery address of {order}.", "{order} is going to the wrong address."),
)
PROFILE = (
    *("I moved, and my new address is {address}.", "Please change my own address to {address}."),
    *("I've moved to {address}. Please update my account.", "Can you put {address} as the address on my account?"),
    *("My account should have the address {address}.", "Please update the address on my profile to {address}."),
    *("I'd like to change the address on my account to {address}.", "Please set my account address to {address}."),
    *("I live at {address} now. Please update my account.", "My profile needs a new address: {address}."),
    *("Could you update my account address to {address}?", "The address on my account should be {address}."),
)
PROFILE_VAGUE = (
    *("I moved. Please change the address on my account.", "My account still has my old address."),
    *("I'd like to update the address on my account.", "I need to change my account address."),
    *("Can you change the address on my profile?", "The address on my account is out of date."),
)
PAYMENT = (
    *("I want to pay for {order} with my {kind} instead.", "Please charge {order} to my {kind}."),
    *("I'd like to use my {kind} for {order} instead.", "Can you switch the payment for {order} to my {kind}?"),
    *("{order} should be paid with my {kind}.", "I used the wrong payment for {order}. Please charge my {kind}."),
    *("Please put {order} on my {kind} instead.", "Can I pay for {order} with my {kind}?"),
    *("I want to change the payment for {order} to my {kind}.", "I'd like {order} to be charged to my {kind}."),
    *("Could you change {order} so it's paid with my {kind}?", "Please move the payment for {order} to my {kind}."),
)
PAYMENT_VAGUE = (
    *("I want to pay for {order} in a different way.", "Please change the payment for {order}."),
    *("I'd like to use another payment method for {order}.", "Can I change how I pay for {order}?"),
    *("I used the wrong payment for {order}.", "I need to switch the payment method on {order}."),
)
PRICE = (
    *("How much was the {item} in {order}?", "What did I pay for the {item} in {order}?"),
    *("How much did you charge me for the {item} in {order}?", "What is the price of the {item} in {order}?"),
    *("I want to know what the {item} from {order} cost.", "Can you tell me the price of the {item} in {order}?"),
    *("What did the {item} in {order} cost?", "Could you look up the price of the {item} from {order}?"),
    *("I'd like to know how much the {item} in {order} was.", "I need the price of the {item} from {order}."),
    *("Please tell me what I paid for the {item} in {order}.", "How much did the {item} from {order} cost me?"),
)
TOTAL = (
    *("How much was {order} altogether?", "What is the total of {order}?", "What was the total for {order}?"),
    *("What did I pay for {order} in all?", "Tell me the total of {order}, please.", "How much did {order} come to?"),
    *("What did {order} cost me in total?", "Can you tell me the total of {order}?", "I need the total for {order}."),
    *(
        "How much was I charged for {order} in total?",
        "What does {order} add up to?",
        "What's the full amount of {order}?",
    ),
)
STATUS = (
    *("Where is {order}?", "What is the status of {order}?", "Can you check on {order} for me?"),
    *("Has {order} been shipped?", "What's happening with {order}?", "Any update on {order}?"),
    *("Is {order} on its way?", "Has {order} shipped yet?", "I'd like to know where {order} is."),
    *(
        "Can you tell me the status of {order}?",
        "How is {order} coming along?",
        "Could you look up {order}? I want to know its status.",
    ),
    *(
        "I'm still waiting for {order}. What's its status?",
        "Did {order} ship?",
        "I want to check the status of {order}.",
    ),
)
WHERE_TO = (
    *("Which address is {order} going to?", "Where will {order} be delivered?", "Where are you sending {order}?"),
    *(
        "What address is on {order}?",
        "Can you tell me the delivery address for {order}?",
        "What's the shipping address on {order}?",
    ),
    *(
        "To which address did I have {order} sent?",
        "Where is {order} being shipped to?",
        "Which address did I give for {order}?",
    ),
)
PAID_WITH = (
    *(
        "How did I pay for {order}?",
        "Which payment method did I use for {order}?",
        "What did I use to pay for {order}?",
    ),
    *("What was {order} paid with?", "Can you tell me how I paid for {order}?", "What payment is on {order}?"),
    *("Which of my payment methods was charged for {order}?", "What card or account did I use for {order}?"),
    *("How was {order} paid for?",),
)
STOCK = (
    *("How much is the {option} {item} right now?", "What does the {option} {item} cost?"),
    *("What's the price of the {option} {item}?", "I'm thinking of buying the {option} {item}. How much is it?"),
    *("How much would the {option} {item} be?", "Can you tell me the price of the {option} {item}?"),
    *("I'm interested in the {option} {item}. What does it cost?", "How much do you charge for the {option} {item}?"),
    *("I'd like to know the price of the {option} {item}.",),
)
SOLD = (
    *("Which of these do you sell, and what does the cheapest one cost: {things}?",),
    *("I'm looking for one of these: {things}. What's the lowest price?",),
    *("Do you carry any of these: {things}? What's the cheapest price?",),
    *("Do you have one of these: {things}? I'd like the price of the cheapest one.",),
    *("I want to buy one of these: {things}. How much is the cheapest one you have?",),
    *("Which of these can I get from you, and for how much at least: {things}?",),
)
UNSOLD = ("piano", "canoe", "bicycle", "sofa", "ladder", "microscope", "trampoline", "chainsaw")
OUTSIDE = (
    *("My package arrived damaged and I want compensation.", "I need an invoice with my company's name on it."),
    *("My item came broken and I'd like to file a claim.", "Please change the email on my account."),
    *("A package that should be here never arrived.", "I need a receipt made out to my company."),
    *("I want to complain about your courier.", "I have a question about the warranty on something I bought."),
    *("I'd like to file a complaint about your delivery service.", "Somebody else used my account."),
    *("I want to claim the warranty on a product.", "I think someone has hacked into my account."),
    *("My package got lost in the mail.", "How do I change the email address I log in with?"),
    *("I want to make a complaint about a driver of yours.", "Can you send me an invoice for my business?"),
    *("What I received was broken, and I want to be compensated.", "There are charges I didn't make on my account."),
    *("The tracking says delivered, but nothing ever came.", "Is my purchase still under warranty?"),
    *("I need to update the email address for my account.",),
)
WHICH_ITEM = (
    *("The {item}.", "It's the {item}.", "I mean the {item}."),
    *("That would be the {item}.", "The {item}, please.", "I'm talking about the {item}."),
)
WHICH_OPTION = (
    *("The {option} one.", "I want the {option} one.", "I'd like the {option} one."),
    *("The {option} one, please.", "It should be the {option} one.", "Make it the {option} one."),
)
NEW_ADDRESS = (
    *("The new address is {address}.", "It's {address}.", "Please use {address}."),
    *("{address}.", "It should be {address}.", "The address is {address}."),
)
PAY_WITH = (
    *("With my {kind}.", "My {kind}, please.", "I want to use my {kind}."),
    *("Please use my {kind}.", "On my {kind}.", "I'd like to pay with my {kind}."),
)
REFUND_TO_GIFT_CARD = (
    *(
        "The refund should go to my gift card.",
        "Please refund it to my gift card.",
        "I want the refund on my gift card.",
    ),
    *("Put the money on my gift card.", "I'd like the money on my gift card.", "My gift card should get the refund."),
)
DIFFERENCE_BY = (
    *(
        "Any difference goes to my {kind}.",
        "Use my {kind} for any difference in price.",
        "Please settle any price difference with my {kind}.",
    ),
    *(
        "If the price is different, use my {kind}.",
        "Charge any difference to my {kind}.",
        "My {kind} can cover any difference.",
    ),
)
KEEP_IT = (
    " I'll keep it.",
    " I want to keep it.",
    " I'm keeping it.",
    " Don't cancel it.",
    " Let me keep it.",
    " I'd rather keep it.",
)
KINDS: Mapping[str, str] = {"card": "credit card", "gift": "gift card", "paypal": "PayPal account"}
