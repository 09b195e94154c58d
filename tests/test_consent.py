"""Consent read from words: many ways to say yes, and all that must not be taken for one."""

import time

import pytest

from understudy.users import asks_consent, consents

YES = [
    "Yes, please proceed with Option 5. You can use the previously provided credit card.",
    "Yes, please proceed with the update. Can you also check my other order? I need to change it if it hasn't shipped.",
    'The reason is "no longer needed." Please proceed.',
    "I think that will work for me. I'll accept the certificate.",
    "Yes.",
    "Yes, please.",
    "yes",
    "YES!",
    "Yeah, go ahead",
    "Yep",
    "Sure.",
    "Sure, go ahead and do that.",
    "OK",
    "Okay, thanks.",
    "I confirm.",
    "I confirm the cancellation of order W1.",
    "Sounds good.",
    "Sounds good, thank you!",
    "That sounds good.",
    "That works.",
    "That works for me, thanks.",
    "Works for me.",
    "Please proceed.",
    "Please proceed with the cancellation.",
    "Please go ahead.",
    "Go ahead.",
    "Go for it!",
    "Absolutely, please proceed.",
    "Of course.",
    "Definitely.",
    "Correct.",
    "That's correct.",
    "That is right, please go ahead.",
    "That's perfect, thank you.",
    "Looks good to me.",
    "Everything looks correct. Please proceed.",
    "Thank you for checking. Yes, please cancel it.",
    "Great, please go ahead.",
    "Perfect, let's do that.",
    "No problem, go ahead.",
    "No worries, that works.",
    "Yes, no problem.",
    "Yes, I no longer need it.",
    "Yes, I don't need it anymore.",
    "Yes, I understand that it can't be undone.",
    "Yes, could you please do that?",
    "Yes, and could you also tell me the refund amount?",
    "**Yes**, please.",
    '"Yes, go ahead."',
    "Yes \u2013 go ahead.",
    "Yes\u2014please.",
    "Yes please",
    "Alright, do it.",
    "Fine.",
    "Confirmed.",
    "Agreed.",
    "Right.",
    "I agree to that.",
    "I do.",
    "Yes, I\u2019m sure.",
    "You can go ahead.",
    "You may proceed.",
    "I'd like to proceed.",
    "I would like you to go ahead with it.",
    "Please do.",
    "Please do so.",
    "Yes, please do that, and thanks for the help.",
    "I can confirm that.",
    "Hi, yes.",
    "Yes, that is what I want.",
    "Yes, I ordered the wrong size.",
    "Yes, I don't want the lamp any more.",
    "Let's do it.",
    "By all means.",
    "Yes, order W1, reason: no longer needed.",
    "I've checked the details, and they're right. Go ahead.",
    "Yes, not a problem.",
    "Yes, it cannot be undone, but that's fine.",
    "Yep, that's the one.",
    "yup do it",
    "Yes, if you could.",
    "Sure thing!",
    "Exactly.",
    "Certainly, please proceed with the refund to my card.",
]

NO = [
    "It works now.",
    "It works again, thanks.",
    "Yes, provided that it is free.",
    "Yes, if it hasn't shipped yet.",
    "OK, if it is free.",
    "I will take another one.",
    "No.",
    "Nope.",
    "No, thank you.",
    "No thanks",
    "Yes, but not that one.",
    "Yes, but use the gift card.",
    "No, go ahead with the other.",
    "No, go ahead with the other one.",
    "Go ahead with the other one instead.",
    "Not yet.",
    "Wait.",
    "Wait, yes... no.",
    "Hold on, what does it cost?",
    "I don't want that.",
    "I do not agree.",
    "I don't confirm.",
    "I can't confirm that.",
    "Yes, if the refund goes to my card.",
    "Only if it is free.",
    "Yes, unless it costs more.",
    "Please don't.",
    "Do not proceed.",
    "Please do not go ahead.",
    "Don't do it.",
    "Actually, no.",
    "Actually, wait.",
    "Yes, wait, no.",
    "Yes? ",
    "What?",
    "OK, and what does it cost?",
    "Okay, what is the refund?",
    "Yes, what is the price?",
    "Sure, how much is it?",
    "Yesterday.",
    "Yesterday it was fine.",
    "Surely you know.",
    "Correction: it is order W2.",
    "Rightly so I am angry.",
    "Okra.",
    "I want to cancel order W1.",
    "Please cancel order W1.",
    "I need to return the lamp.",
    "My email is amy@mail.com.",
    "Thank you.",
    "Thanks!",
    "Great.",
    "Perfect, thanks.",
    "I am not sure.",
    "I'm not sure about that.",
    "That is not right.",
    "That's not what I want.",
    "That's wrong.",
    "That is incorrect.",
    "Is that correct?",
    "Is it okay?",
    "Does that work with my gift card?",
    "Could you go ahead and tell me the price first?",
    "Before you proceed, tell me the price.",
    "I changed my mind.",
    "Never mind.",
    "Stop.",
    "No. I want to cancel order W1.",
    "Please confirm once it is done.",
    "I did not say yes.",
    "I didn't confirm anything.",
    "I never said yes.",
    "That doesn't work for me.",
    "It doesn't look right.",
    "I would rather keep it.",
    "I'd prefer the blue one.",
    "Yes, to the other address.",
    "Yes, with a different card.",
    "I don't think so.",
    "Hmm, no.",
    "",
    "Are you there?",
    "I'll confirm later.",
    "I will confirm when I know the price.",
    "First, could you tell me the total?",
    "Yes, but first tell me the price.",
    "Yes, except the lamp.",
    "Nah",
    "Neither.",
    "Both are wrong.",
    "Everything is wrong.",
    "It's not ok.",
    "Not okay.",
    "That would not work.",
    "I understand.",
    "Which one do you mean?",
    "I said no.",
    "I can't go ahead with that.",
    "How do I proceed?",
    "Should I go ahead?",
    "Would it be ok?",
    "What if I say yes?",
]

ASKS = [
    "Ready to proceed with a refund of $20.00 to card_1?",
    "Let me know if you'd like me to proceed with the exchange.",
    "If you say yes, I will go ahead with the cancellation.",
    "Shall I proceed?",
    "I will cancel order W1 and refund $20.00 to card_1. Do you confirm?",
    "Would you like me to go ahead with this?",
    "Please confirm that I should cancel order W1.",
    "To go ahead, reply **yes**.",
    "Are you sure you want to cancel order W1?",
    "I'll exchange the lamp for the blue one. Does that work for you?",
    "I'll change the address. Is that all right?",
    "Is everything correct?",
    "I would cancel order W1. Is that okay with you?",
    "Refund to your gift card, sounds good?",
    "Do I have your permission to cancel it? Answer 'yes' or 'no'.",
]
ASKS_NOT = [
    "What is your zip code? Once I have it, I can proceed with the exchange request.",
    "I will go ahead and look it up. Which order is it?",
    "What is your email?",
    "Can you confirm your email?",
    "Please confirm your full name and zip code.",
    "Could you confirm the order number?",
    "Please confirm your identity.",
    "Is there anything else?",
    "Your order is cancelled.",
    "How can I help you?",
    "Which one is it, the blue or the red one?",
    "",
]


@pytest.mark.parametrize("text", YES)
def test_a_yes_in_many_words(text: str) -> None:
    assert consents(text)
    assert consents(text.upper())


@pytest.mark.parametrize("text", NO)
def test_what_is_no_yes(text: str) -> None:
    assert not consents(text)


@pytest.mark.parametrize("text", YES)
@pytest.mark.parametrize("doubt", ["No, wait.", "But not the lamp.", "Only if it is free.", "I would rather keep it."])
def test_a_doubt_beside_it_takes_a_yes_back(text: str, doubt: str) -> None:
    assert not consents(f"{text} {doubt}")
    assert not consents(f"{text}\n\n{doubt}")


@pytest.mark.parametrize("text", ASKS)
def test_asking_for_consent(text: str) -> None:
    assert asks_consent(text)


@pytest.mark.parametrize("text", ASKS_NOT)
def test_asking_for_something_else(text: str) -> None:
    assert not asks_consent(text)


@pytest.mark.parametrize(
    "part",
    [
        " ",
        "\n",
        "so and ",
        "please ",
        "(_",
        "i do ",
        "you can ",
        "a, ",
        "- ",
        "\u2014 ",
        "yes ",
        "proceed ",
        "let me know ",
        ".'",
    ],
)
def test_long_texts_take_no_longer(part: str) -> None:
    text = part * 20_000 + "x"
    started = time.process_time()
    consents(text)
    asks_consent(text)
    assert time.process_time() - started < 1.0
