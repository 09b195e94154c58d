"""Tasks for the Python server: questions to compute. The answers are computed here without the server."""

import datetime
import itertools
import statistics

from mcp_tasks.draft import Draft, Family, Pick, call

_WORDS = ("amber", "birch", "cliff", "delta", "ember", "fjord", "grove", "haze", "inlet", "jade", "knoll", "lagoon")


def _primes(pick: Pick) -> Draft:
    low = pick.rng.randint(50, 4000)
    high = low + pick.rng.randint(300, 5000)
    sieve = bytearray([1]) * high
    for n in range(2, high):
        sieve[n * n :: n] = bytes(len(range(n * n, high, n)))
    total = sum(n for n in range(low, high) if sieve[n])
    code = f"sum(n for n in range({low}, {high}) if all(n % d for d in range(2, int(n ** 0.5) + 1)))"
    return _draft(
        pick.ask(
            f"What is the sum of all primes from {low} up to but not including {high}?",
            f"Add up all prime numbers p with {low} <= p < {high}. What do you get?",
            f"Sum the primes that are at least {low} and less than {high}. What is the result?",
        ),
        total,
        code,
    )


def _digits(pick: Pick) -> Draft:
    factor, base, power = pick.rng.randint(11, 999), pick.rng.randint(3, 99), pick.rng.randint(30, 200)
    value, total = factor * base**power, 0
    while value:
        value, digit = divmod(value, 10)
        total += digit
    code = f"sum(map(int, str({factor} * {base} ** {power})))"
    return _draft(
        pick.ask(
            f"What do the digits of {factor} times {base} to the power of {power} add up to?",
            f"What is the digit sum of {factor} * {base}^{power}?",
            f"Compute {factor} times {base} raised to the power {power}. What is the sum of its digits?",
        ),
        total,
        code,
    )


def _days(pick: Pick) -> Draft:
    first = datetime.date(1950, 1, 1) + datetime.timedelta(days=pick.rng.randint(0, 20_000))
    last = first + datetime.timedelta(days=pick.rng.randint(200, 9000))
    weeks, rest = divmod((last - first).days, 7)
    count = 5 * weeks + sum((first.weekday() + n) % 7 < 5 for n in range(rest))
    code = f"import datetime as d\na, b = d.date.fromisoformat('{first}'), d.date.fromisoformat('{last}')\n"
    code += "sum((a + d.timedelta(n)).weekday() < 5 for n in range((b - a).days))"
    return _draft(
        pick.ask(
            f"How many weekdays (Monday to Friday) are there from {first} up to but not including {last}?",
            f"Count the days from Monday to Friday between {first} (included) and {last} (excluded).",
            f"Starting on {first} and ending before {last}, how many days are weekdays, Monday to Friday?",
        ),
        count,
        code,
    )


def _spread(pick: Pick) -> Draft:
    numbers = [pick.rng.randint(-500, 500) for _ in range(14)]
    spread = statistics.pvariance(numbers)
    code = f"x = {numbers}\nm = sum(x) / len(x)\nround(sum((v - m) ** 2 for v in x) / len(x), 2)"
    text = ", ".join(map(str, numbers))
    return _draft(
        pick.ask(
            f"What is the population variance of {text}, to two decimals?",
            f"Compute the population variance of these numbers, rounded to two decimals: {text}",
            f"Here are some numbers: {text}. What is their population variance, to two decimal places?",
        ),
        round(spread, 2),
        code,
    )


def _words(pick: Pick) -> Draft:
    words = [pick.rng.choice(_WORDS) for _ in range(40)]
    asked = pick.rng.choice(_WORDS[:6])
    following = sum(one == asked and other != asked for one, other in itertools.pairwise(words))
    code = f"w = '{' '.join(words)}'.split()\nsum(a == '{asked}' != b for a, b in zip(w, w[1:]))"
    text = " ".join(words)
    prompt = pick.ask(
        f"How often is the word {asked} followed by a different word in this text: {text}",
        f"Count how many times {asked} is directly followed by another word that is not {asked}: {text}",
        f"In the following text, how many times does a word other than {asked} come right after {asked}? {text}",
    )
    return _draft(prompt, following, code)


def _twice(pick: Pick) -> Draft:
    modulus, count, divisor = pick.rng.randint(1000, 9999), pick.rng.randint(50, 400), pick.rng.randint(3, 9)
    start = value = pick.rng.randint(2, 999)
    total = 0
    for _ in range(count):
        value = (7 * value + 3) % modulus
        total += value if value % divisor == 0 else 0
    step = f"replace x by (7 x + 3) modulo {modulus}"
    prompt = pick.ask(
        f"Start with x = {start}. Do this {count} times: {step}, and add x to a list. "
        f"What is the sum of the numbers in the list that are divisible by {divisor}?",
        f"Let x be {start}. Repeat {count} times: {step} and append it to a list. "
        f"Add up all numbers of the list that {divisor} divides. What do you get?",
        f"x is {start}. Then, {count} times in a row, {step} and write x down. "
        f"What do the written numbers that are multiples of {divisor} add up to?",
    )
    make = f"x, n = [], {start}\nfor _ in range({count}):\n    n = (7 * n + 3) % {modulus}\n    x.append(n)"
    return _draft(prompt, total, make, f"sum(n for n in x if n % {divisor} == 0)")


def _draft(prompt: str, answer: float, *codes: str) -> Draft:
    gold = tuple(call("execute_python", code=code) for code in codes)
    return Draft(prompt, gold, f"It is {answer}.", answer)


PYTHON = (
    Family("primes", "easy", _primes),
    Family("digits", "easy", _digits),
    Family("days", "medium", _days),
    Family("variance", "medium", _spread),
    Family("words", "medium", _words),
    Family("twice", "hard", _twice),
)
