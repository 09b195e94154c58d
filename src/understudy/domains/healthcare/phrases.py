"""Wording of healthcare tasks. `{visit}`, `{drug}` and `{bill}` stand for the caller's words for the thing.

Requests that somebody may make for the patient fit both. Every third phrase of a tuple is held out for the test split
(see `PhraseSampler`).
"""

from collections.abc import Mapping

OPENED = (
    *(
        "My name is {name}, born {born}.",
        "This is {name}, date of birth {born}.",
        "I'm {name}, and I was born on {born}.",
    ),
    *("I'm {name}, born {born}.", "{name} here, date of birth {born}.", "The name is {name}, born {born}."),
    *(
        "My name is {name} and my date of birth is {born}.",
        "Hi, it's {name}, born {born}.",
        "This is {name}, born on {born}.",
    ),
    *("I'm a patient, {name}, born {born}.", "{name}, date of birth {born}.", "Name: {name}, date of birth: {born}."),
)
MEMBER = (
    *(
        "My member id is {id}, date of birth {born}.",
        "I'm member {id}, born {born}.",
        "My insurance member id is {id}, and I was born on {born}.",
    ),
    *(
        "You can find me under member id {id}, I was born on {born}.",
        "My member number is {id} and my date of birth is {born}.",
        "Member id {id}, date of birth {born}.",
    ),
    *(
        "I have the member id {id}, born on {born}.",
        "The member id on my card is {id}, date of birth {born}.",
        "You can look me up by member id {id}, born {born}.",
    ),
)
NAME = ("My name is {name}.", "I'm {name}.", "The name is {name}.", "It's {name}.", "Name: {name}.", "This is {name}.")
BORN = (
    *("I was born on {born}.", "My date of birth is {born}.", "My birthday is {born}."),
    *("Date of birth: {born}.", "Born on {born}.", "Date of birth is {born}."),
    *("It's {born}.", "I'm born on {born}.", "My birth date is {born}."),
)
CALLS = (
    *(
        "I'm {caller}, calling for {name}, born {born}.",
        "This is {caller}, calling for {name}, date of birth {born}.",
        "My name is {caller}, and I'm calling on behalf of {name}, born {born}.",
    ),
    *(
        "My name is {caller}. It's about {name}, born {born}.",
        "I'm {caller}. I'm calling about {name}, date of birth {born}.",
        "{caller} here, for {name}, born {born}.",
    ),
    *(
        "I'm {caller} and I handle things for {name}, born on {born}.",
        "This is {caller}. I'm calling for {name}, who was born on {born}.",
        "My name is {caller}. The patient is {name}, date of birth {born}.",
    ),
)
CALLS_FOR = (
    *("I'm calling for {name}.", "It's about {name}.", "I'm calling on behalf of {name}."),
    *("I take care of things for {name}.", "I'm calling about {name}.", "The patient is {name}."),
    *("I'm taking care of this for {name}.", "I have a request for {name}.", "This is about {name}."),
)
OWN_NAME = (
    "My own name is {caller}.",
    "I'm {caller}.",
    "My name is {caller}.",
    "It's {caller}.",
    "Mine is {caller}.",
    "This is {caller}.",
)
PATIENT_BORN = (
    *("{first} was born on {born}.", "{first}'s date of birth is {born}.", "The date of birth is {born}."),
    *("{first}'s birthday is {born}.", "That's {born}.", "The patient was born on {born}."),
)

WHICH = (
    *("It's {thing}.", "I mean {thing}.", "I'm talking about {thing}."),
    *("Sorry, {thing}.", "That's {thing}.", "It would be {thing}."),
    *("{thing}, please.", "I was thinking of {thing}.", "It should be {thing}."),
)
VISIT = (
    *("{owner} appointment with Dr. {doctor}", "{owner} visit with Dr. {doctor}", "{owner} visit to Dr. {doctor}"),
    *("the appointment with Dr. {doctor}", "the appointment we have with Dr. {doctor}", "the visit to Dr. {doctor}"),
    *("{owner} appointment at Dr. {doctor}'s", "the visit with Dr. {doctor}", "the appointment at Dr. {doctor}'s"),
)
VISIT_DESCRIBED = (
    *("{owner} {specialty} appointment", "{owner} appointment for {specialty}", "{owner} {specialty} visit"),
    *("{owner} visit for {specialty}", "the {specialty} appointment", "the appointment for {specialty}"),
)
VISIT_WRONG = (
    *("{owner} appointment on {day}", "the appointment on {day}", "the visit on {day}"),
    *("{owner} visit on {day}", "the appointment for {day}", "{owner} appointment for {day}"),
)
DRUG_DESCRIBED = (
    *("{owner} medicine for {use}", "{owner} {use} medicine", "{owner} {use} prescription"),
    *("{owner} prescription for {use}", "{owner} {use} medication", "{owner} medication for {use}"),
)
DRUG_VAGUE = (
    *("{owner} medicine", "one of {owner} prescriptions", "{owner} medication"),
    *("{owner} prescription", "one of {owner} medicines", "one of {owner} medications"),
    *("{owner} meds", "one of {owner} meds", "one of {owner} drugs"),
)
BILL_DESCRIBED = (
    *("the bill from {day}", "my bill for the visit on {day}", "my bill from {day}"),
    *("the bill for {day}", "my bill for {day}", "the bill for the visit on {day}"),
)
BILL_VAGUE = (
    *("my bill", "a bill of mine", "a bill I got"),
    *("one of my bills", "a bill from you", "one of the bills I got"),
    *("my medical bill", "one of my medical bills", "a medical bill"),
)

CANCEL = (
    *("Please cancel {visit}.", "Can you cancel {visit}?", "I'd like to cancel {visit}."),
    *("I need to cancel {visit}.", "I would like {visit} cancelled.", "Could you cancel {visit}, please?"),
    *("I'm calling to cancel {visit}.", "Something came up. Please cancel {visit}.", "I have to cancel {visit}."),
    *("I want to cancel {visit}.", "Can {visit} be cancelled?", "Please take {visit} off the schedule and cancel it."),
    *("I need {visit} cancelled.", "Unfortunately, I have to cancel {visit}.", "Is it possible to cancel {visit}?"),
    *(
        "We won't make it. Please cancel {visit}.",
        "Could you please cancel {visit}?",
        "I want {visit} to be cancelled.",
    ),
)
MOVE = (
    *("Please move {visit} to {when}.", "Can you move {visit} to {when}?", "Could you reschedule {visit} to {when}?"),
    *(
        "I would like to have {visit} on {when} instead.",
        "I need to reschedule {visit} to {when}.",
        "I'd like to move {visit} to {when}.",
    ),
    *(
        "Could {visit} be on {when} instead?",
        "Please reschedule {visit} to {when}.",
        "Is it possible to move {visit} to {when}?",
    ),
    *("I want to change {visit} to {when}.", "Can {visit} be moved to {when}?", "I need {visit} moved to {when}."),
    *(
        "I have to move {visit} to {when}.",
        "Please change {visit} to {when}.",
        "Would it be possible to have {visit} on {when}?",
    ),
)
MOVE_VAGUE = (
    *("I need to move {visit} to another time.", "Please reschedule {visit}.", "I'd like to reschedule {visit}."),
    *(
        "The time of {visit} doesn't work anymore. Please move it.",
        "Can you move {visit} to a different time?",
        "I need a different time for {visit}.",
    ),
    *("I have to reschedule {visit}.", "Could {visit} be at another time?", "I want to change the time of {visit}."),
)
LATE_FEE = (
    *("If there's a late fee, I'll pay it.", "A late fee is fine.", "I'm okay with a late fee."),
    *("I'll pay the fee if there is one.", "I understand there may be a fee.", "I don't mind paying the fee."),
)
MEET = (
    *("an appointment", "a visit", "an in-person visit"),
    *("an in-person appointment", "a regular visit", "a regular appointment"),
)
VIDEO = (
    *("a telehealth visit", "a video visit", "a telehealth appointment"),
    *("a video appointment", "a telehealth video visit", "a video telehealth visit"),
    *("a visit by video", "an appointment by video", "a visit by telehealth"),
)
BOOK = (
    *(
        "I would like {visit} with Dr. {doctor} on {when}.",
        "Please book {visit} with Dr. {doctor} for {when}.",
        "I'd like to book {visit} with Dr. {doctor} for {when}.",
    ),
    *(
        "Can I have {visit} with Dr. {doctor} on {when}?",
        "I need {visit} with Dr. {doctor}. Can you do {when}?",
        "Could I get {visit} with Dr. {doctor} on {when}?",
    ),
    *(
        "I've been a little tired for some weeks. Can I get {visit} with Dr. {doctor} on {when}?",
        "I'm due for a check-up. Please book {visit} with Dr. {doctor} on {when}.",
        "I'm due for my yearly check-up. I'd like {visit} with Dr. {doctor} on {when}.",
    ),
    *(
        "I want to schedule {visit} with Dr. {doctor} for {when}.",
        "Can you schedule {visit} with Dr. {doctor} on {when}?",
        "I need to see Dr. {doctor}. Please book {visit} on {when}.",
    ),
    *(
        "Is it possible to book {visit} with Dr. {doctor} for {when}?",
        "Please schedule {visit} with Dr. {doctor} for {when}.",
        "Would {when} work for {visit} with Dr. {doctor}? Please book it.",
    ),
    *(
        "I'm trying to get {visit} with Dr. {doctor} on {when}.",
        "I'd like to come in. Please book {visit} with Dr. {doctor} on {when}.",
        "Could you book {visit} with Dr. {doctor} on {when}?",
    ),
)
BOOK_VAGUE = (
    *(
        "I would like {visit} with Dr. {doctor}.",
        "Please book {visit} with Dr. {doctor} for me.",
        "I'd like to schedule {visit} with Dr. {doctor}.",
    ),
    *(
        "I need {visit} with Dr. {doctor}.",
        "Can I book {visit} with Dr. {doctor}?",
        "Could I get {visit} with Dr. {doctor}?",
    ),
    *(
        "I want to schedule {visit} with Dr. {doctor}.",
        "I'm calling to book {visit} with Dr. {doctor}.",
        "I need to set up {visit} with Dr. {doctor}.",
    ),
)
COSTLY = (
    *(
        "If it costs more because of the network, that's fine.",
        "I don't mind paying more for out of network.",
        "It's fine if it costs more out of network.",
    ),
    *("I'm okay with the out-of-network price.", "I'll pay the higher price.", "The extra cost is fine with me."),
)
SPECIALIST = (
    *(
        "I need a {specialty} appointment {where}, the first free time on {day}.",
        "Please book a visit for {specialty} {where}: {day}, as early as possible.",
    ),
    *("I'd like a {specialty} visit {where} on {day}, the earliest time available.",),
    *("I would like to see somebody for {specialty} {where} on {day}, at the first time that is free.",),
    *("Can you find me a {specialty} doctor {where}? The first free time on {day}, please.",),
    *("I need to see a {specialty} doctor {where}. Please book the earliest time on {day}.",),
    *("Could you book me with someone in {specialty} {where} on {day}, at the first available time?",),
    *("I'm looking for a {specialty} appointment {where} on {day}, as early as they have one.",),
    *("Please get me the first {specialty} appointment on {day} {where}.",),
    *("I want an appointment in {specialty} {where}. The earliest one on {day}, please.",),
    *("Please schedule a {specialty} visit {where} for me: the first opening on {day}.",),
    *("Can you book the earliest {specialty} appointment on {day} {where}?",),
)
REFILL = (
    *("I need {drug} refilled.", "Please refill {drug}.", "I'd like to get {drug} refilled."),
    *("Can you refill {drug}?", "I would like a refill of {drug}.", "Could I get a refill of {drug}?"),
    *("I'm calling for a refill of {drug}.", "Could you have {drug} filled again?", "I need a refill for {drug}."),
    *("Please have {drug} refilled.", "Can I get {drug} refilled?", "We're almost out. Please refill {drug}."),
    *(
        "I want to order a refill of {drug}.",
        "I need more of {drug}. Please refill it.",
        "Is it possible to refill {drug}?",
    ),
    *("Could you refill {drug}, please?", "I'd like {drug} to be refilled.", "Please order a refill of {drug}."),
)
RENEW = (
    *(
        "If the doctor has to renew it first, please ask for that.",
        "If it needs a renewal from the doctor, please request it.",
        "Please ask the doctor for a renewal if that's needed.",
    ),
    *(
        "A renewal by the doctor is fine.",
        "If it takes a renewal, please ask for one.",
        "If the doctor needs to renew it, go that way.",
    ),
)
PHARMACY = (
    *(
        "Please send {drug} to {pharmacy} from now on.",
        "Can you move {drug} to {pharmacy}?",
        "I'd like to have {drug} at {pharmacy} from now on.",
    ),
    *(
        "I would like to pick up {drug} at {pharmacy} instead.",
        "I need {drug} moved to {pharmacy}.",
        "Could you transfer {drug} to {pharmacy}?",
    ),
    *(
        "Please change the pharmacy for {drug} to {pharmacy}.",
        "I want to get {drug} from {pharmacy} from now on.",
        "Please switch {drug} to {pharmacy}.",
    ),
    *(
        "Can {drug} be sent to {pharmacy} instead?",
        "I'd like to move {drug} to {pharmacy}.",
        "Is it possible to have {drug} moved to {pharmacy}?",
    ),
)
PHARMACY_VAGUE = (
    *(
        "I want to get {drug} from another pharmacy.",
        "Please move {drug} to another pharmacy.",
        "I'd like to switch pharmacies for {drug}.",
    ),
    *(
        "The pharmacy for {drug} is too far away. Please change it.",
        "Can I change the pharmacy for {drug}?",
        "I need a different pharmacy for {drug}.",
    ),
    *(
        "I moved. Please change the pharmacy for {drug}.",
        "Could {drug} go to another pharmacy?",
        "I want to change where I pick up {drug}.",
    ),
)
TO_PHARMACY = (
    *("To {to}.", "{to}, please.", "I'd like {to}."),
    *("It should go to {to}.", "Please use {to}.", "I want it at {to}."),
)
LATER = (
    *("{one} or {two}, whichever closes later", "{one} or {two}, the one that closes last"),
    *("either {one} or {two}, depending on which closes later",),
    *("{one} or {two}, the one that is open longer in the evening", "{two} or {one}, whichever closes later"),
    *("{one} or {two}, the one with the later closing time",),
)
REFERRAL = (
    *(
        "I need a referral to {specialty}.",
        "Can I get a referral to {specialty}?",
        "Could you request a referral to {specialty}?",
    ),
    *(
        "Please request a referral to {specialty} for me.",
        "I would like a referral for {specialty}.",
        "I'd like to be referred to {specialty}.",
    ),
    *(
        "I'm calling about a referral to {specialty}. I need one.",
        "Can you get me a referral for {specialty}?",
        "My plan asks for a referral to {specialty}. Please request one.",
    ),
    *(
        "I need to be referred to {specialty}.",
        "Could I have a referral to {specialty}?",
        "I want a referral to {specialty}.",
    ),
)
PHONE = (
    *(
        "I have a new phone number, {number}.",
        "Please change my phone number to {number}.",
        "Could you update my phone number to {number}?",
    ),
    *(
        "My number is now {number}. Please update it.",
        "My phone number changed to {number}.",
        "Please put {number} down as my phone number.",
    ),
    *(
        "I got a new phone, the number is {number}.",
        "You can reach me at {number} from now on. Please update my file.",
        "I need to change my phone number to {number}.",
    ),
)
PHONE_VAGUE = (
    *("I have a new phone number.", "Please change my phone number.", "I need to update my phone number."),
    *(
        "You have my old phone number.",
        "My phone number has changed.",
        "Can you change the phone number you have for me?",
    ),
    *(
        "The phone number on file is out of date.",
        "I'd like to change my phone number.",
        "I got a new number you should have.",
    ),
)
NEW_PHONE = (
    *("The new number is {number}.", "It's {number}.", "My new number is {number}."),
    *("{number}.", "You can reach me at {number}.", "The number is {number}."),
)
INSURANCE = (
    *(
        "I have new insurance, {plan}, member id {id}.",
        "My insurance is now {plan} and the member id is {id}.",
        "I switched to {plan}, and my member id is {id}.",
    ),
    *(
        "Please change my insurance to {plan}, member id {id}.",
        "I changed insurance. It's {plan} now, member id {id}.",
        "Could you update my insurance to {plan}, member id {id}?",
    ),
    *(
        "My employer moved us to {plan}. My member id is {id}.",
        "I'm with {plan} now, member id {id}.",
        "I have a new plan, {plan}, with the member id {id}.",
    ),
)
INSURANCE_VAGUE = (
    *(
        "I have new insurance, {plan}.",
        "I switched to {plan}. Please change it in my file.",
        "Please update my insurance, it's {plan} now.",
    ),
    *("My insurance is {plan} now.", "I changed my insurance to {plan}.", "I'm insured with {plan} now."),
    *("My employer moved us to {plan}.", "Please put {plan} down as my insurance.", "I have a new plan, {plan}."),
)
MEMBER_ID = (
    *("The member id is {id}.", "It's {id}.", "The id on the card is {id}."),
    *("My new member id is {id}.", "The card says {id}.", "That's {id}."),
    *("My member id is {id}.", "It says {id}.", "Member id {id}."),
)
MISREAD = (
    *(
        "Sorry, I misread it. It's {id}.",
        "My mistake, that was the old card. It's {id}.",
        "Oops, I read it wrong. It's {id}.",
    ),
    *("Oh, it's {id}.", "Sorry, wrong card. It's {id}.", "You're right, it says {id}."),
    *("I mixed up the cards. It's {id}.", "My bad, the right one is {id}.", "Let me look again. It's {id}."),
)
PAY = (
    *(
        "I want to pay {bill} with my {card}.",
        "Please charge {bill} to my {card}.",
        "I'd like to pay {bill} with my {card}.",
    ),
    *(
        "Can I pay {bill} with my {card}?",
        "I would like to settle {bill} with my {card}.",
        "Could you charge {bill} to my {card}?",
    ),
    *(
        "I want to use my {card} to pay {bill}.",
        "Please put {bill} on my {card}.",
        "I'd like to use my {card} for {bill}.",
    ),
    *(
        "I'm calling to pay {bill} with my {card}.",
        "I need to pay {bill}. Please use my {card}.",
        "Can you take the payment for {bill} from my {card}?",
    ),
)
PAY_VAGUE = (
    *("I want to pay {bill}.", "Can I pay {bill} over the phone?", "I'd like to pay {bill}."),
    *("I would like to settle {bill}.", "I'm calling to pay {bill}.", "How can I pay {bill}?"),
    *("I need to pay {bill}.", "I want to take care of {bill}.", "Could I pay {bill} now?"),
)
PAY_WITH = (
    *("With my {card}.", "My {card}, please.", "I want to use my {card}."),
    *("Please use my {card}.", "On my {card}.", "I'd like to pay with my {card}."),
)
SPREAD = (
    *(
        "I would like to pay {bill} over {months} months.",
        "Can I pay {bill} in {months} monthly installments?",
        "I'd like a {months}-month payment plan for {bill}.",
    ),
    *(
        "Please set up a payment plan of {months} months for {bill}.",
        "I can't pay {bill} all at once. Can I have {months} months for it?",
        "Could I spread {bill} over {months} months?",
    ),
    *(
        "I want to pay {bill} off in {months} months.",
        "Can we do {months} monthly payments for {bill}?",
        "I need {months} months to pay {bill}. Can you set that up?",
    ),
    *(
        "Is it possible to pay {bill} over {months} months?",
        "I'd like to split {bill} into {months} monthly payments.",
        "Please let me pay {bill} over {months} months.",
    ),
)
SPREAD_VAGUE = (
    *(
        "I would like to pay {bill} in installments.",
        "Can I have a payment plan for {bill}?",
        "I'd like to set up a payment plan for {bill}.",
    ),
    *(
        "I can't pay {bill} all at once. Can I spread it out?",
        "Is a payment plan possible for {bill}?",
        "I need to pay {bill} in monthly installments.",
    ),
    *(
        "Could I pay {bill} a little each month?",
        "I want to split {bill} into monthly payments.",
        "Please set up installments for {bill}.",
    ),
)
MONTHS = (
    *("Over {months} months.", "{months} months.", "I'd like {months} months."),
    *("{months} months, please.", "Let's do {months} months.", "Make it {months} months."),
)
AMOUNT = (
    *("How much is {bill}?", "What does {bill} come to?", "How much do I have to pay for {bill}?"),
    *("What is the amount of {bill}?", "Can you tell me how much {bill} is?", "What's the total on {bill}?"),
    *("What do I owe on {bill}?", "I'd like to know the amount of {bill}.", "How high is {bill}?"),
)
OWED = (
    *("How much do I owe you altogether?", "What do all my open bills come to?", "How much do I have to pay in total?"),
    *("What is my total balance?", "What's the total of my open bills?", "How much do I owe in all?"),
    *("Can you tell me what I owe in total?", "What do my bills add up to?", "I'd like to know my full balance."),
)
COPAY = (
    *(
        "What is my copay for a visit to Dr. {doctor}?",
        "What do I have to pay when I see Dr. {doctor}?",
        "How much is my copay with Dr. {doctor}?",
    ),
    *(
        "How much does a visit to Dr. {doctor} cost me?",
        "What would I pay for a visit with Dr. {doctor}?",
        "What's my share for a visit to Dr. {doctor}?",
    ),
    *(
        "Can you tell me my copay for Dr. {doctor}?",
        "If I see Dr. {doctor}, what do I pay?",
        "I'd like to know what a visit to Dr. {doctor} costs me.",
    ),
)
COPAYS = (
    *(
        "I will have to see Dr. {doctor} {times} times. What do I pay in total?",
        "What do {times} visits to Dr. {doctor} cost me altogether?",
    ),
    *("If I see Dr. {doctor} {times} times, what's my total?",),
    *(
        "How much is my copay for {times} visits to Dr. {doctor} together?",
        "I need {times} visits with Dr. {doctor}. How much will I pay for all of them?",
    ),
    *("What's the total copay for {times} visits to Dr. {doctor}?",),
    *(
        "What would {times} appointments with Dr. {doctor} cost me in all?",
        "Can you tell me what I pay for {times} visits to Dr. {doctor} in total?",
    ),
    *("How much do I pay altogether if I go to Dr. {doctor} {times} times?",),
)
LAB = (
    *(
        "What is the result of my {test} test?",
        "Is my {test} result back, and what is it?",
        "Can you give me my {test} result?",
    ),
    *("What did my {test} test show?", "Can you tell me my {test} result?", "What came out of my {test} test?"),
    *(
        "I'd like to know the result of my {test} test.",
        "Do you have my {test} result? What is it?",
        "I'm calling for my {test} result.",
    ),
    *("How did my {test} test turn out?", "What's my {test} result?", "I want to know my {test} test result."),
)
WHEN = (
    *("When is {visit}?", "What day and time is {visit}?", "Can you tell me when {visit} is?"),
    *(
        "I forgot when {visit} is.",
        "I'm not sure when {visit} is. Can you tell me?",
        "What's the date and time of {visit}?",
    ),
    *(
        "Could you remind me when {visit} is?",
        "On which day and at what time is {visit}?",
        "I need the date and time of {visit}.",
    ),
)
NEXT = (
    *(
        "What is the earliest that I could see Dr. {doctor}?",
        "What is Dr. {doctor}'s first opening?",
        "When could I see Dr. {doctor} at the earliest?",
    ),
    *(
        "When is Dr. {doctor} free next?",
        "When is the next available time with Dr. {doctor}?",
        "What's the first time Dr. {doctor} is available?",
    ),
    *(
        "How soon could I see Dr. {doctor}?",
        "What's the next opening with Dr. {doctor}?",
        "When does Dr. {doctor} have the first free appointment?",
    ),
)
UNTIL = (
    *(
        "Until when is my referral to {specialty} valid?",
        "When does my {specialty} referral end?",
        "How long is my {specialty} referral valid?",
    ),
    *(
        "When does my referral to {specialty} expire?",
        "What's the last day of my {specialty} referral?",
        "Can you tell me when my {specialty} referral runs out?",
    ),
)
LEFT = (
    *(
        "How many visits are left on my referral to {specialty}?",
        "How many times can I still use my {specialty} referral?",
        "How many visits does my {specialty} referral still have?",
    ),
    *(
        "How many more visits does my {specialty} referral cover?",
        "How many visits do I have left for {specialty}?",
        "Can you check how many visits remain on my {specialty} referral?",
    ),
)
ALLERGIES = (
    *(
        "Which allergies do you have on file for me?",
        "What allergies are in my file?",
        "What are my allergies according to your records?",
    ),
    *(
        "Can you tell me what allergies I have on file?",
        "What allergies do you have listed for me?",
        "I'd like to check which allergies are in my record.",
    ),
)
PRIMARY = (
    *(
        "Who is my primary doctor?",
        "Which doctor do you have as my primary doctor?",
        "Who's listed as my primary care doctor?",
    ),
    *(
        "Can you tell me who my primary doctor is?",
        "What's the name of my primary doctor?",
        "Who do you have down as my primary doctor?",
    ),
)
ON_FILE = (
    *(
        "Which phone number do you have for me?",
        "What is the phone number in my file?",
        "What number do you have on file for me?",
    ),
    *(
        "Can you tell me which phone number is on file?",
        "What phone number is in my record?",
        "Which number would you call me at?",
    ),
)
CLOSES = (
    *("When does {pharmacy} close?", "Until when is {pharmacy} open?", "How late is {pharmacy} open?"),
    *(
        "What time does {pharmacy} close?",
        "Can you tell me when {pharmacy} closes?",
        "What's the closing time of {pharmacy}?",
    ),
)

URGENT = (
    *(
        "I've had a crushing pain in my chest since this morning.",
        "I can hardly breathe since last night.",
        "I have a sharp pain in my chest that won't go away.",
    ),
    *(
        "My left arm is suddenly numb and my speech is slurred.",
        "I cut my hand and it won't stop bleeding.",
        "I suddenly can't feel my right leg.",
    ),
    *(
        "My lips and my throat have been swelling since I took a new pill.",
        "My chest feels tight and the pain goes into my arm.",
        "My throat is swelling up and it's hard to swallow.",
    ),
    *(
        "I fainted twice today and I'm short of breath.",
        "One side of my face has been drooping for an hour.",
        "I passed out in the shower this morning.",
    ),
    *(
        "I'm having trouble breathing and my chest hurts.",
        "My speech suddenly became slurred.",
        "I have a deep cut that keeps bleeding.",
    ),
    *(
        "My tongue is swelling after something I ate.",
        "I have chest pain every time I breathe.",
        "My right arm suddenly went weak.",
    ),
    *(
        "I can't catch my breath.",
        "My nose has been bleeding for two hours and won't stop.",
        "The left side of my body feels numb all of a sudden.",
    ),
    *(
        "I collapsed at work an hour ago.",
        "There's a heavy pressure on my chest.",
        "My mouth is drooping on one side and I can't speak clearly.",
    ),
)
ADVICE = (
    *(
        "Can I take ibuprofen together with my {drug}?",
        "Should I stop taking {drug} when I feel better?",
        "Is it safe to drink alcohol while I'm on {drug}?",
    ),
    *(
        "I feel dizzy after my {drug}. Should I take half of it?",
        "Is {drug} really the right medicine for me?",
        "Can I take my {drug} in the morning instead of the evening?",
    ),
    *(
        "I forgot my {drug} this morning. Should I take two tonight?",
        "Which dose of {drug} do you recommend?",
        "Should I be worried about the side effects of {drug}?",
    ),
    *(
        "I saw the result of my {test} test. Is it too high?",
        "Does my {drug} interact with cough syrup?",
        "What does my {test} result mean for me?",
    ),
    *(
        "Is my {test} result normal?",
        "I don't think {drug} is helping. Should I take more of it?",
        "Is it okay to skip {drug} for a few days?",
    ),
    *(
        "Can I take {drug} on an empty stomach?",
        "Should I worry about my {test} test?",
        "I feel nauseous from {drug}. Should I stop it?",
    ),
    *(
        "Is it bad to take {drug} with coffee?",
        "Do I still need {drug} if I feel fine?",
        "Should I change what I eat because of my {test} result?",
    ),
)
OUTSIDE = (
    *(
        "I need a copy of all my medical records.",
        "I want to complain about how I was treated at the reception.",
        "Please send my medical records to another clinic.",
    ),
    *(
        "My name has changed. Please correct it in my file.",
        "I need a letter for my employer that I was at the clinic.",
        "I need a note for work that I had an appointment.",
    ),
    *(
        "I think that I was billed for a visit that never happened.",
        "I want to take somebody off the list of who may call for me.",
        "I was charged for a visit I never had.",
    ),
    *(
        "I left my jacket in the waiting room.",
        "My doctor has to fill in a form for my disability insurance.",
        "I think I left my glasses in the exam room.",
    ),
    *(
        "I got married and need my name changed in my file.",
        "I'd like to file a complaint about a nurse.",
        "My school needs a form filled out by the doctor.",
    ),
    *(
        "My birth date is wrong in your records. Please fix it.",
        "I want to add my sister to the people who may call for me.",
        "There's a mistake in my bill that needs to be corrected.",
    ),
    *(
        "I need a letter for my insurance company.",
        "I'd like all my records on paper.",
        "The staff were rude to me and I want to complain.",
    ),
    *(
        "My name is spelled wrong in your system.",
        "I lost my umbrella at your clinic.",
        "I need my vaccination records for my new job.",
    ),
)
WHEN_WANTED = (
    "On {when}.",
    "I'd like {when}.",
    "{when}, please.",
    "How about {when}?",
    "{when} would be good.",
    "I was hoping for {when}.",
)
OTHER_TIME = (
    *("Then {time}.", "{time}, then.", "Then let's do {time}."),
    *("Then I'd like {time}.", "In that case, {time}.", "{time} works too."),
)
FALLBACK = (
    *(
        " If that's taken, {time} is fine too.",
        " If that doesn't work, {time} would be fine.",
        " Otherwise {time} is fine.",
    ),
    *(
        " {time} would work as well.",
        " If it's not free, {time} is okay too.",
        " If that isn't available, take {time}.",
    ),
)
CARDS: Mapping[str, str] = {"card": "credit card", "hsa": "HSA card"}
