"""Wording of delivery tasks. `{order}` stands for the customer's words for the order.

Every third phrase of a tuple is held out for the test split (see `PhraseSampler`).
"""

from collections.abc import Mapping, Sequence

from understudy.domains.authoring.identification import EMAIL_PHRASES as EMAIL
from understudy.domains.authoring.identification import NAME_PHRASES as NAME
from understudy.domains.doordash.state import Dropoff, RefundTarget

__all__ = ["EMAIL", "NAME"]

NO_EMAIL = (
    *("I don't have my email handy. My phone number is {phone}.", "I forgot which email I used. My phone is {phone}."),
    *("I'm not sure which email is on the account. My phone number is {phone}.",),
    *(
        "No idea which email that was, but my number is {phone}.",
        "I don't remember the email. Can you look up {phone}?",
    ),
    *("I can't recall the email. You can search for my number, {phone}.",),
    *("Someone else set up the app for me, so I don't know the email. The phone number is {phone}.",),
    *("I have several emails. My phone number is {phone}.", "Sorry, I don't know the email. The number is {phone}."),
)
PHONE = (
    *("My phone number is {phone}.", "It's {phone}.", "The number is {phone}."),
    *("You can reach me at {phone}.", "My number is {phone}.", "Phone: {phone}."),
)
ORDER = (
    *("It's order {id}.", "The number is {id}.", "The order number is {id}."),
    *("Order {id}.", "That's {id}.", "It says {id} in the app."),
    *("The order is {id}.", "My order number is {id}.", "I see {id} as the order number."),
    *("It's number {id}.", "The app says {id}.", "I have it here: {id}."),
)
NO_ORDER = (
    *(
        "I don't know the number. It's {described}.",
        "No idea. I mean {described}.",
        "I don't have the number, but it's {described}.",
    ),
    *(
        "I can't find the number. It's {described}.",
        "I'm not sure about the number. I'm talking about {described}.",
        "The app doesn't show me a number. It's {described}.",
    ),
    *(
        "I don't see a number. It's {described}.",
        "I don't remember it. It was {described}.",
        "Where do I find the number? It's {described}.",
    ),
)
VAGUE = (
    *("my order", "one of my orders", "an order I placed"),
    *("an order of mine", "my food order", "one of my deliveries"),
    *("a recent order", "a delivery of mine", "something I ordered"),
)
FROM = (
    *("my order from {restaurant}", "the order from {restaurant}", "the {restaurant} order"),
    *("my {restaurant} order", "what I ordered from {restaurant}", "the food I ordered from {restaurant}"),
    *("the order I placed at {restaurant}", "my delivery from {restaurant}", "the delivery from {restaurant}"),
)
WITH = (
    *("my order from {restaurant} with the {item}", "the {restaurant} order with the {item}"),
    *("the order from {restaurant} that includes the {item}", "the order from {restaurant} that has the {item}"),
    *("my {restaurant} order with the {item}", "my {restaurant} order that has the {item} in it"),
    *("the delivery from {restaurant} with the {item}", "my order of the {item} from {restaurant}"),
    *("the {item} order from {restaurant}",),
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

CANCEL = (
    *("I want to cancel {order}.", "Please cancel {order}.", "I'd like to cancel {order}, please."),
    *(
        "Can you cancel {order} for me?",
        "I don't need {order} anymore. Please cancel it.",
        "Could you please cancel {order}?",
    ),
    *(
        "Could you stop {order}? I have to leave.",
        "Something came up, and I would like {order} cancelled.",
        "I won't be home. Please cancel {order}.",
    ),
    *("I need to cancel {order}.", "I changed my plans. Please cancel {order}.", "I have to cancel {order}."),
    *(
        "Can I still cancel {order}?",
        "Is it possible to cancel {order}?",
        "I ordered by accident. Please cancel {order}.",
    ),
    *("I want {order} cancelled.", "How do I cancel {order}?", "Please stop {order}, I don't want it anymore."),
)
FREE_ONLY = (
    *("But only if it's free.", "I won't pay a fee for that, though.", "I don't want to pay a fee for it, though."),
    *("If it costs anything, leave it as it is.", "Only if there is no fee.", "But not if there's a charge for it."),
    *("But only if there's no charge.", "Please don't if there is a fee.", "I only want that if it's free of charge."),
)
KEEP_IT = (
    "I'll keep it.",
    "I want to keep it.",
    "I'm keeping it.",
    "Don't cancel it.",
    "Let me keep it.",
    "I'd rather keep it.",
)
ADDRESS = (
    *(
        "Please send {order} to {address} instead.",
        "I want {order} delivered to {address}.",
        "I'd like {order} to go to {address}.",
    ),
    *("Can you change the address of {order} to {address}?", "I'm somewhere else now. {order} has to go to {address}."),
    *("I'm not at home. Please bring {order} to {address}.",),
    *("The address of {order} should be {address}.", "Could you deliver {order} to {address} instead?"),
    *("The app has my old address. Please deliver {order} to {address}.",),
    *(
        "Please change the delivery address of {order} to {address}.",
        "I entered the wrong address for {order}. It should be {address}.",
    ),
    *("Can {order} be delivered to {address}?",),
    *(
        "I need {order} delivered to {address}.",
        "I put in the wrong address. {order} has to go to {address}.",
        "Please update the address of {order} to {address}.",
    ),
)
ADDRESS_VAGUE = (
    *("I want {order} sent to another address.", "The address of {order} is wrong. Please change it."),
    *("I need to change the delivery address of {order}.", "Can you deliver {order} somewhere else?"),
    *("I'd like to update the address on {order}.", "{order} is going to the wrong address."),
)
NEW_ADDRESS = (
    *("The new address is {address}.", "It's {address}.", "Please use {address}."),
    *("{address}.", "It should be {address}.", "The address is {address}."),
)
DROPOFF: Mapping[Dropoff, Sequence[str]] = {
    "hand it to me": (
        *("Please hand {order} to me in person.", "I want the courier to hand {order} to me."),
        *("I'd like {order} handed to me directly.", "Nobody should leave {order} anywhere, I want it in my hands."),
        *("Can the courier give {order} to me in person?", "Please have the courier hand {order} to me personally."),
        *("For {order}, the courier should hand it to me.", "Don't leave {order} outside, please hand it to me."),
        *("I'd prefer to get {order} handed to me in person.",),
    ),
    "leave at the door": (
        *("Please leave {order} at the door.", "Can the courier leave {order} at my door?"),
        *("I'd like {order} to be left at my door.", "The baby is sleeping, so {order} should be left at the door."),
        *("Just have {order} left at the door.", "Could you have {order} dropped at my door?"),
        *("{order} can be left at the door.", "The courier should leave {order} at the door, please."),
        *("I can't come to the door. Please leave {order} there.",),
    ),
    "leave with reception": (
        *("Please leave {order} with reception.", "Can {order} be left at the reception desk?"),
        *("I'd like {order} to be dropped off at reception.", "I'm in a meeting. {order} should go to reception."),
        *("The courier should leave {order} with reception.", "Please have {order} left at the front reception."),
        *("For {order}, please leave it with reception.", "I'm at work, so reception should take {order}."),
        *("Could the courier give {order} to reception?",),
    ),
    "meet outside": (
        *("I'll meet the courier outside for {order}.", "Please tell the courier of {order} to meet me outside."),
        *(
            "I'd like to meet the courier of {order} outside.",
            "The bell is broken. For {order}, I'd rather meet outside.",
        ),
        *("I'll be waiting outside for {order}.", "Can I meet the courier outside to get {order}?"),
        *("For {order}, I want to meet outside.", "The courier of {order} should meet me outside."),
        *("My building is hard to find, so I'll meet the courier of {order} outside.",),
    ),
}
DROPOFF_VAGUE = (
    *("Please change the delivery instructions of {order}.", "The instructions for the courier of {order} are wrong."),
    *("I want to change how {order} is handed over.", "I need to update the drop-off instructions for {order}."),
    *("Can I change the instructions for {order}?", "The drop-off option of {order} isn't right."),
)
HANDED: Mapping[Dropoff, Sequence[str]] = {
    "hand it to me": (
        *("The courier should hand it to me.", "Hand it to me in person.", "I want it handed to me."),
        *("Please hand it to me.", "It should be handed to me.", "Give it to me in person."),
    ),
    "leave at the door": (
        *("Just leave it at the door.", "At the door, please.", "It should be left at the door."),
        *("Leave it at my door.", "They can leave it at the door.", "Please leave it at the door."),
    ),
    "leave with reception": (
        *("Leave it with reception.", "Reception can take it.", "It should go to reception."),
        *("With reception, please.", "They should leave it with reception.", "Please give it to reception."),
    ),
    "meet outside": (
        *("I'll meet the courier outside.", "I want to meet them outside.", "I'd like to meet the courier outside."),
        *("I'll wait outside.", "We can meet outside.", "The courier should meet me outside."),
    ),
}
TIP = (
    *(
        "Please make the tip of {order} {tip}.",
        "I want the tip for {order} to be {tip}.",
        "I'd like the tip for {order} to be {tip}.",
    ),
    *(
        "Can you change the tip of {order} to {tip}?",
        "The tip for {order} should be {tip}.",
        "Could you set the tip of {order} to {tip}?",
    ),
    *(
        "I need to change the tip for {order} to {tip}.",
        "Please set the tip for {order} to {tip}.",
        "Change the tip on {order} to {tip}, please.",
    ),
    *(
        "I entered the wrong tip for {order}. It should be {tip}.",
        "Please update the tip on {order} to {tip}.",
        "I want to change the tip on {order}. Make it {tip}.",
    ),
)
TIP_VAGUE = (
    *("I want to change the tip of {order}.", "The tip for {order} isn't what I wanted."),
    *("I'd like to update the tip on {order}.", "Can I change the tip for {order}?"),
    *("I entered the wrong tip for {order}.", "I need to fix the tip on {order}."),
)
NEW_TIP = (
    *("Make it {tip}.", "{tip}, please.", "I want it to be {tip}."),
    *("It should be {tip}.", "Let's say {tip}.", "I'd like to make it {tip}."),
)
REMOVE = (
    *(
        "Please take the {item} out of {order}.",
        "I don't want the {item} in {order} anymore.",
        "I'd like to remove the {item} from {order}.",
    ),
    *(
        "Can you remove the {item} from {order}?",
        "{order} has the {item} in it by mistake. Please remove it.",
        "Could you take the {item} off {order}?",
    ),
    *(
        "I changed my mind about the {item} in {order}. Please take it out.",
        "Please drop the {item} from {order}.",
        "I don't need the {item} in {order}. Please remove it.",
    ),
    *(
        "I want {order} without the {item}.",
        "The {item} in {order} was a mistake. Can you remove it?",
        "Please remove the {item} from {order}.",
    ),
)
ADD = (
    *(
        "Please add the {item} to {order}.",
        "I forgot the {item} in {order}. Can you add it?",
        "I'd like to add the {item} to {order}.",
    ),
    *(
        "Can you put the {item} into {order} as well?",
        "I would like the {item} in {order} too.",
        "Could you add the {item} to {order}?",
    ),
    *(
        "I also want the {item} in {order}.",
        "Is it possible to add the {item} to {order}?",
        "I want to have the {item} added to {order}.",
    ),
    *(
        "Can I get the {item} with {order}?",
        "Please include the {item} in {order}.",
        "One more thing for {order}: please add the {item}.",
    ),
)
PROMOTION = (
    *(
        "I forgot to use my code {code} for {order}.",
        "Can you apply the code {code} to {order}?",
        "I'd like to use the code {code} on {order}.",
    ),
    *(
        "Please use the promotion {code} for {order}.",
        "I have the code {code} and want it on {order}.",
        "Could you add my code {code} to {order}?",
    ),
    *(
        "The promotion {code} should be on {order}. Can you apply it?",
        "I want to use {code} for {order}.",
        "Please put the code {code} on {order}.",
    ),
    *(
        "I have a promo code for {order}: {code}.",
        "Can I still use the code {code} for {order}?",
        "There's a code I want to use for {order}. It's {code}.",
    ),
)

MISSING = (
    *(
        "Somebody forgot the {items} of {order}.",
        "{order} came without the {items}.",
        "I'm missing the {items} from {order}.",
    ),
    *(
        "I never got the {items} of {order}.",
        "I got something else instead of the {items} in {order}.",
        "When {order} arrived, I didn't get the {items}.",
    ),
    *(
        "{order} arrived without the {items}.",
        "You forgot the {items} in {order}.",
        "There was no sign of the {items} in {order}.",
    ),
    *(
        "I didn't get the {items} I paid for in {order}.",
        "I paid for the {items} in {order} and didn't get that.",
        "Instead of the {items}, {order} had something I didn't order.",
    ),
)
BACK: Mapping[RefundTarget, Sequence[str]] = {
    "payment": (
        *("I want the money back on my {kind}.", "Please refund it to my {kind}.", "I'd like a refund to my {kind}."),
        *(
            "The refund should go to my {kind}.",
            "Please put the money back on my {kind}.",
            "Can I have the money back on my {kind}?",
        ),
        *("I want a refund on my {kind}.", "Refund my {kind}, please.", "I'd like the money returned to my {kind}."),
    ),
    "credit": (
        *("I'll take it as credit.", "Please refund it as credit.", "I'd like the refund as credit."),
        *("The refund should come as credit.", "Credit for my next order is fine.", "You can give it to me as credit."),
        *("I want it back as credit.", "Please add it to my credit.", "I'd rather have the refund as credit."),
    ),
}
LATE = (
    *(
        "I want something back for {order}, it took far too long.",
        "{order} was late. What do I get for that?",
        "{order} was very late, and I'd like to be compensated.",
    ),
    *(
        "The delivery of {order} was late, and I want a credit for that.",
        "Why was {order} so late? I want to be compensated.",
        "I had to wait much too long for {order}. I'd like a credit.",
    ),
    *(
        "I want a credit, because {order} was late.",
        "{order} came late and I'd like some compensation.",
        "I'd like compensation for the late delivery of {order}.",
    ),
    *(
        "The food of {order} came way too late. Can I get something back?",
        "I'm not happy, {order} was late. I want a credit.",
        "Can I get a credit for {order}? It was late.",
    ),
)
REDELIVER = (
    *(
        "Somebody forgot the {items} of {order}. Please bring it now.",
        "{order} came without the {items}. Can you send it again?",
    ),
    *("The {items} was missing from {order}. I'd like you to deliver it now.",),
    *("I never got the {items} of {order} and I'm still hungry. Please deliver it.",),
    *("I got something else instead of the {items} of {order}. I want the right thing brought to me.",),
    *("{order} arrived without the {items}. Could you bring it to me?",),
    *(
        "You forgot the {items} in {order}. I don't want a refund, I want you to send it.",
        "There was no {items} in {order}. Please send it to me.",
    ),
    *("I'm still waiting for the {items} of {order}. Can someone bring it?",),
    *(
        "The {items} wasn't in {order}. Please have it delivered again.",
        "I didn't get the {items} in {order}. I want a new one sent.",
    ),
    *("I'd like the missing {items} of {order} sent to me again.",),
)
OR_CREDIT = (
    *(
        "If that can't be done, refund me as credit.",
        "If not, I'll take the refund as credit.",
        "Otherwise I'd like the refund as credit.",
    ),
    *(
        "If you can't do that, give me the refund as credit.",
        "If that's not possible, a refund as credit is fine.",
        "If it doesn't work, please refund it as credit.",
    ),
)
OUTSIDE: Mapping[str, Sequence[str]] = {
    "accident with a courier": (
        *(
            "Your courier hit my parked car.",
            "The courier drove into my fence.",
            "One of your couriers crashed into my mailbox.",
        ),
        *(
            "Your courier scratched my car.",
            "A courier of yours knocked over my bike.",
            "Your driver backed into my garage door.",
        ),
    ),
    "allergic reaction": (
        *(
            "I had an allergic reaction to what I ate.",
            "My son got hives from the food you brought.",
            "My throat swelled up after I ate your food.",
        ),
        *(
            "I'm having an allergic reaction to my meal.",
            "My daughter reacted to the nuts in the food.",
            "I got a rash from the food.",
        ),
    ),
    "food poisoning": (
        *(
            "We all got sick from the food.",
            "I think I have food poisoning from my last meal.",
            "The food made me sick.",
        ),
        *(
            "I threw up all night after eating your food.",
            "My family has food poisoning.",
            "Everyone who ate the food got sick.",
        ),
    ),
    "rude courier": (
        *(
            "I want to complain about how the courier talked to me.",
            "Your courier shouted at me.",
            "The courier was extremely rude to me.",
        ),
        *(
            "Your courier insulted me.",
            "I want to file a complaint about a courier.",
            "The courier swore at me at my door.",
        ),
    ),
    "stolen account": (
        *(
            "Somebody else is ordering with my account.",
            "There are orders in my account that aren't mine.",
            "I think my account was hacked.",
        ),
        *(
            "Someone has taken over my account.",
            "Somebody used my account without asking.",
            "A stranger is using my account.",
        ),
    ),
    "tax invoice": (
        *(
            "I need an invoice with my company's name on it.",
            "My office needs a tax invoice for my orders.",
            "I need a tax invoice for my employer.",
        ),
        *(
            "Can I get a tax invoice?",
            "I need invoices for my tax return.",
            "My company needs an invoice for a delivery.",
        ),
    ),
    "charged twice": (
        *(
            "My bank says that you charged me twice.",
            "I was charged twice for the same thing.",
            "There's a double charge on my bank statement.",
        ),
        *("You took the money twice.", "I see two charges for one delivery.", "I was billed twice."),
    ),
}
"""Cases for a human agent, and how customers describe them."""

PLACE = (
    *(
        "I would like to order {items} from {restaurant}.",
        "Please order {items} from {restaurant} for me.",
        "I'd like to get {items} from {restaurant}.",
    ),
    *(
        "Can you get me {items} from {restaurant}?",
        "The app isn't working. I want {items} from {restaurant}.",
        "Could you order {items} from {restaurant} for me?",
    ),
    *(
        "I want to order {items} from {restaurant}.",
        "I can't order in the app. Please get me {items} from {restaurant}.",
        "I'm hungry and want {items} from {restaurant}.",
    ),
    *(
        "Could I get {items} from {restaurant}?",
        "Please place an order for {items} at {restaurant}.",
        "I want {items} delivered from {restaurant}.",
    ),
)
WITH_TIP = (
    *("The tip should be {tip}.", "Add a tip of {tip}.", "With a tip of {tip}."),
    *("{tip} for the courier, please.", "I want to tip {tip}.", "Please include a {tip} tip."),
    *("I'd like to tip {tip}.", "Make the tip {tip}.", "The courier should get a tip of {tip}."),
)
WITH_CODE = (
    *("I have the code {code}.", "Use the promotion {code}.", "I'd like to use the code {code}."),
    *("My code is {code}.", "Please apply the code {code}.", "There's a promo code for it: {code}."),
    *("I want to use my code {code}.", "Use my code {code}.", "The promotion {code} should apply."),
)
PAY = (
    *("I'll pay with my {kind}.", "Please charge my {kind}.", "I'd like to pay with my {kind}."),
    *("Take it from my {kind}.", "I want to use my {kind}.", "My {kind} should be charged."),
    *("Put it on my {kind}.", "Use my {kind} for the payment.", "I'm paying with my {kind}."),
)
AGAIN = (
    *(
        "I want the same as in {order} again.",
        "Please order what I had in {order} again.",
        "I'd like to have {order} once more.",
    ),
    *(
        "Can you repeat {order} for me?",
        "Send me the same things as in {order}, please.",
        "Could you reorder everything from {order}?",
    ),
    *("I'd like to reorder {order}.", "Please place {order} again.", "I want the same food as in {order}."),
    *("Can I get the same as in {order}?", "I liked {order}. Please order it again.", "Please reorder {order} for me."),
)
SAME_PAYMENT = (
    *("I'll pay the way I did then.", "Charge it to what I used then.", "Use the payment from that order."),
    *("Same payment as last time.", "I want to pay like last time.", "The payment should be the same as before."),
    *("Please use the same payment method as then.", "I'm paying the same way.", "Charge it the same way as before."),
)
ALLERGY = (
    *("I want the {first} from {restaurant}, but if there's {allergen} in it, then the {second}.",),
    *("No {allergen} for me. Order the {first} from {restaurant}, or the {second} if there's any in the {first}.",),
    *("I can't eat {allergen}. I'd like the {first} from {restaurant} if it has none, otherwise the {second}.",),
    *("I'm allergic to {allergen}. Get me the {first} from {restaurant} if that's safe, otherwise the {second}.",),
    *("Please order the {first} from {restaurant}, unless it contains {allergen}. In that case I want the {second}.",),
    *("I have to avoid {allergen}. Order me the {first} from {restaurant}, or the {second} if that contains it.",),
    *("Is there {allergen} in the {first} from {restaurant}? If not, order it for me, otherwise get the {second}.",),
    *("I don't tolerate {allergen}. If the {first} from {restaurant} has none, order that, else the {second}.",),
    *("Order the {first} from {restaurant} if there's no {allergen} in it. If there is, I'll have the {second}.",),
)
CHEAPEST = (
    *("Which {cuisine} restaurant brings me {items} for the least money right now, and what is it with delivery?",),
    *("Which open {cuisine} restaurant is the cheapest for {items}, including delivery? What would I pay?",),
    *("What's the cheapest {cuisine} restaurant for {items} that's open now, and how much is it with delivery?",),
    *("I'm looking for the cheapest {cuisine} place for {items} right now. What does it cost with delivery?",),
    *("Where can I get {items} for the lowest price right now, delivery included? I'd like a {cuisine} restaurant.",),
    *("Which {cuisine} restaurant open now delivers {items} the cheapest, and for how much in total?",),
    *("Tell me which {cuisine} restaurant delivers {items} for the least right now, and the price with delivery.",),
    *("Can you find me the cheapest {cuisine} restaurant for {items} that's open? I need the price with delivery.",),
    *("How much are {items} with delivery at the cheapest {cuisine} restaurant that's open now, and which one is it?",),
)
ORDER_CHEAPEST = (
    *("Order {items} from the {cuisine} restaurant that is cheapest right now with delivery.",),
    *("I want {items} from whichever {cuisine} restaurant costs me the least right now, delivery included.",),
    *("Please get me {items} from the cheapest {cuisine} restaurant that's open, including delivery.",),
    *("Find the {cuisine} restaurant where {items} cost the least with delivery right now, and order there.",),
    *("Please order {items} for me at the {cuisine} restaurant with the lowest total right now, delivery included.",),
    *("I'd like {items} from the {cuisine} restaurant that's cheapest now, counting delivery. Please order it.",),
)

PRICE = (
    *(
        "How much did I pay for the {item} in {order}?",
        "What did you charge for the {item} in {order}?",
        "How much did the {item} in {order} cost?",
    ),
    *(
        "What was the price of the {item} in {order}?",
        "I want to know what the {item} from {order} cost.",
        "Can you tell me what I paid for the {item} in {order}?",
    ),
    *(
        "How much was the {item} in {order}?",
        "What did the {item} in {order} cost me?",
        "I'd like to know the price of the {item} in {order}.",
    ),
    *(
        "Could you look up what the {item} in {order} cost?",
        "I need the price of the {item} from {order}.",
        "How much was I charged for the {item} in {order}?",
    ),
)
TOTAL = (
    *(
        "How much was {order} altogether?",
        "What did I pay for {order} in total?",
        "How much did I pay for {order}, everything included?",
    ),
    *(
        "What is the total of {order}, with fee and tip?",
        "How much did you charge me for {order}?",
        "What was the full amount for {order}?",
    ),
    *(
        "What did {order} cost me in total?",
        "Can you tell me the total I paid for {order}?",
        "What's the total amount I was charged for {order}?",
    ),
    *(
        "How much did {order} come to in the end?",
        "I need the total of {order}.",
        "What did {order} come to with everything?",
    ),
)
WHERE = (
    *("Where is {order}?", "How long will {order} take?", "Can you tell me where {order} is?"),
    *("I'm wondering where {order} is.", "Is {order} on its way?", "How much longer until {order} gets here?"),
    *("When will I get {order}?", "What's happening with {order}?", "Do you know when {order} will arrive?"),
    *("I'm still waiting for {order}. Where is it?", "When does {order} arrive?", "Any update on {order}?"),
    *("Can you check on {order}?", "What's taking {order} so long?", "I'd like to know when {order} gets here."),
)
COST = (
    *(
        "How much does {restaurant} charge for the {item}?",
        "What is the price of the {item} at {restaurant}?",
        "What would the {item} from {restaurant} cost?",
    ),
    *(
        "I'm thinking of getting the {item} from {restaurant}. How much would that be?",
        "How much is the {item} at {restaurant}?",
        "Can you tell me the price of the {item} at {restaurant}?",
    ),
    *(
        "What does the {item} cost at {restaurant}?",
        "I'd like to know the price of the {item} at {restaurant}.",
        "How much would I pay for the {item} at {restaurant}?",
    ),
)
VEGAN = (
    *("What is the cheapest vegan dish at {restaurant}, and what does it cost?",),
    *("I'm vegan. What's the cheapest thing I can have from {restaurant}, and for how much?",),
    *("Can you tell me the cheapest vegan dish at {restaurant} and its price?",),
    *("Which vegan dish at {restaurant} costs the least, and how much is it?",),
    *("What's the least expensive vegan dish at {restaurant}? I'd like the price too.",),
    *("I eat vegan. Which dish at {restaurant} is the cheapest for me, and what's the price?",),
)
ALLERGENS = (
    *("Which allergens are in the {item} at {restaurant}? I'd like to know the price too.",),
    *("What is the price of the {item} at {restaurant}, and which allergens does it contain?",),
    *("Can you tell me the allergens in the {item} at {restaurant}, and its price?",),
    *("What allergens does the {item} at {restaurant} have, and how much is it?",),
    *("How much is the {item} at {restaurant}, and what allergens are in it?",),
    *("I need to know the allergens and the price of the {item} at {restaurant}.",),
)
