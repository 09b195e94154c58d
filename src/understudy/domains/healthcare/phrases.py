"""Wording. Callers say the same thing in many ways; a perfect agent says it in one, so that little data shows the way.

`{visit}`, `{drug}` and `{bill}` stand for how the caller calls the thing. Requests that somebody may make who calls for
the patient are worded for both.
"""

from collections.abc import Mapping

OPENED = (
    "My name is {name}, born {born}.",
    "This is {name}, date of birth {born}.",
    "I am {name}, born {born}.",
    "{name} here, date of birth {born}.",
)
MEMBER = (
    "My member id is {id}, date of birth {born}.",
    "I am member {id}, born {born}.",
    "You can find me under member id {id}, I was born on {born}.",
)
BORN = ("I was born on {born}.", "My date of birth is {born}.", "Date of birth: {born}.")
CALLS = (
    "I am {caller}, calling for {name}, born {born}.",
    "This is {caller}, calling for {name}, date of birth {born}.",
    "My name is {caller}. It is about {name}, born {born}.",
)
CALLS_FOR = ("I am calling for {name}.", "It is about {name}.", "I take care of things for {name}.")

WHICH = ("It is {thing}.", "I mean {thing}.", "Sorry, {thing}.", "That is {thing}.")
VISIT = (
    "{owner} appointment with Dr. {doctor}",
    "{owner} visit with Dr. {doctor}",
    "the appointment with Dr. {doctor}",
)
VISIT_DESCRIBED = ("{owner} {specialty} appointment", "{owner} appointment for {specialty}")
VISIT_WRONG = ("{owner} appointment on {day}", "the appointment on {day}")
DRUG_DESCRIBED = ("{owner} medicine for {use}", "{owner} {use} medicine")
DRUG_VAGUE = ("{owner} medicine", "one of {owner} prescriptions", "{owner} prescription")
BILL_DESCRIBED = ("the bill from {day}", "my bill for the visit on {day}")
BILL_VAGUE = ("my bill", "a bill of mine", "one of my bills")

CANCEL = (
    "Please cancel {visit}.",
    "Can you cancel {visit}?",
    "I need to cancel {visit}.",
    "I would like {visit} cancelled.",
    "I am calling to cancel {visit}.",
    "Something came up. Please cancel {visit}.",
)
MOVE = (
    "Please move {visit} to {when}.",
    "Can you move {visit} to {when}?",
    "I would like to have {visit} on {when} instead.",
    "I need to reschedule {visit} to {when}.",
    "Could {visit} be on {when} instead?",
)
MOVE_VAGUE = (
    "I need to move {visit} to another time.",
    "Please reschedule {visit}.",
    "The time of {visit} does not work any more, please move it.",
)
LATE_FEE = "If there is a late fee, I will pay it."
MEET = ("an appointment", "a visit")
VIDEO = ("a telehealth visit", "a video visit", "a telehealth appointment")
BOOK = (
    "I would like {visit} with Dr. {doctor} on {when}.",
    "Please book {visit} with Dr. {doctor} for {when}.",
    "Can I have {visit} with Dr. {doctor} on {when}?",
    "I need {visit} with Dr. {doctor}. Can you do {when}?",
    "I have been a little tired for some weeks. Can I get {visit} with Dr. {doctor} on {when}?",
    "I am due for a check-up. Please book {visit} with Dr. {doctor} on {when}.",
)
BOOK_VAGUE = (
    "I would like {visit} with Dr. {doctor}.",
    "Please book {visit} with Dr. {doctor} for me.",
    "I need {visit} with Dr. {doctor}.",
)
COSTLY = "If it costs more because of the network, that is fine."
SPECIALIST = (
    "I need a {specialty} appointment {where}, the first free time on {day}.",
    "Please book a visit for {specialty} {where}: {day}, as early as possible.",
    "I would like to see somebody for {specialty} {where} on {day}, at the first time that is free.",
    "Can you find me a {specialty} doctor {where}? The first free time on {day}, please.",
)
REFILL = (
    "I need {drug} refilled.",
    "Please refill {drug}.",
    "Can you refill {drug}?",
    "I would like a refill of {drug}.",
    "I am calling for a refill of {drug}.",
    "Could you have {drug} filled again?",
)
RENEW = "If the doctor has to renew it first, please ask for that."
PHARMACY = (
    "Please send {drug} to {pharmacy} from now on.",
    "Can you move {drug} to {pharmacy}?",
    "I would like to pick up {drug} at {pharmacy} instead.",
    "I need {drug} moved to {pharmacy}.",
)
PHARMACY_VAGUE = (
    "I want to get {drug} from another pharmacy.",
    "Please move {drug} to another pharmacy.",
    "The pharmacy for {drug} is too far away, please change it.",
)
LATER = ("{one} or {two}, whichever closes later", "{one} or {two}, the one that closes last")
REFERRAL = (
    "I need a referral to {specialty}.",
    "Can I get a referral to {specialty}?",
    "Please request a referral to {specialty} for me.",
    "I would like a referral for {specialty}.",
)
PHONE = (
    "I have a new phone number, {number}.",
    "Please change my phone number to {number}.",
    "My number is now {number}, please update it.",
)
PHONE_VAGUE = ("I have a new phone number.", "Please change my phone number.", "You have my old phone number.")
INSURANCE = (
    "I have a new insurance, {plan}, member id {id}.",
    "My insurance is now {plan} and the member id is {id}.",
    "Please change my insurance to {plan}, member id {id}.",
)
INSURANCE_VAGUE = (
    "I have a new insurance, {plan}.",
    "I switched to {plan}, please change it in my file.",
    "My insurance is {plan} now.",
)
MEMBER_ID = ("The member id is {id}.", "It is {id}.", "My new member id is {id}.")
MISREAD = ("Sorry, I misread it. It is {id}.", "My mistake, that was the old card. It is {id}.", "Oh, it is {id}.")
PAY = (
    "I want to pay {bill} with my {card}.",
    "Please charge {bill} to my {card}.",
    "Can I pay {bill} with my {card}?",
    "I would like to settle {bill} with my {card}.",
)
PAY_VAGUE = ("I want to pay {bill}.", "Can I pay {bill} over the phone?", "I would like to settle {bill}.")
SPREAD = (
    "I would like to pay {bill} over {months} months.",
    "Can I pay {bill} in {months} monthly installments?",
    "Please set up a payment plan of {months} months for {bill}.",
    "I can't pay {bill} all at once. Can I have {months} months for it?",
)
SPREAD_VAGUE = (
    "I would like to pay {bill} in installments.",
    "Can I have a payment plan for {bill}?",
    "I can't pay {bill} all at once. Can I spread it?",
)
AMOUNT = ("How much is {bill}?", "What does {bill} come to?", "What is the amount of {bill}?")
OWED = ("How much do I owe you altogether?", "What do all my open bills come to?", "What is my total balance?")
COPAY = (
    "What is my co-pay for a visit to Dr. {doctor}?",
    "What do I have to pay when I see Dr. {doctor}?",
    "How much does a visit to Dr. {doctor} cost me?",
)
COPAYS = (
    "I will have to see Dr. {doctor} {times} times. What do I pay in all?",
    "What do {times} visits to Dr. {doctor} cost me altogether?",
    "How much is my co-pay for {times} visits to Dr. {doctor} together?",
)
LAB = (
    "What is the result of my {test} test?",
    "Is my {test} result back, and what is it?",
    "What did my {test} test come to?",
    "Can you tell me my {test} result?",
)
WHEN = ("When is {visit}?", "What day and time is {visit}?", "I forgot when {visit} is.")
NEXT = (
    "What is the earliest that I could see Dr. {doctor}?",
    "What is Dr. {doctor}'s first opening?",
    "When is Dr. {doctor} free next?",
)
UNTIL = ("Until when is my referral to {specialty} valid?", "When does my {specialty} referral end?")
LEFT = (
    "How many visits are left on my referral to {specialty}?",
    "How many times can I still use my {specialty} referral?",
)
ALLERGIES = ("Which allergies do you have on file for me?", "What allergies are in my file?")
PRIMARY = ("Who is my primary doctor?", "Which doctor do you have as my primary doctor?")
ON_FILE = ("Which phone number do you have for me?", "What is the phone number in my file?")
CLOSES = ("When does {pharmacy} close?", "Until when is {pharmacy} open?")

URGENT = (
    "I have had a crushing pain in my chest since this morning.",
    "I can hardly breathe since last night.",
    "My left arm is suddenly numb and my speech is slurred.",
    "I cut my hand and it will not stop bleeding.",
    "My lips and my throat are swelling since I took a new pill.",
    "My chest feels tight and the pain goes into my arm.",
    "I fainted twice today and I am short of breath.",
    "One side of my face droops since an hour ago.",
)
ADVICE = (
    "Can I take ibuprofen together with my {drug}?",
    "Should I stop taking {drug} when I feel better?",
    "I feel dizzy after my {drug}. Should I take half of it?",
    "Is {drug} really the right medicine for me?",
    "I forgot my {drug} this morning. Should I take two tonight?",
    "Which dose of {drug} do you recommend?",
    "I have seen the result of my {test} test. Is it too high?",
)
OUTSIDE = (
    "I need a copy of all my medical records.",
    "I want to complain about how I was treated at the reception.",
    "My name has changed, please correct it in my file.",
    "I need a letter for my employer that I was at the clinic.",
    "I think that I was billed for a visit that never happened.",
    "I want to take somebody off the list of who may call for me.",
    "I left my jacket in the waiting room.",
    "My doctor has to fill in a form for my disability insurance.",
)
CARDS: Mapping[str, str] = {"card": "credit card", "hsa": "HSA card"}
