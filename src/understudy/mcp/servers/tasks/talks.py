"""Tasks for slack, and for several servers at once."""

from typing import Any

from understudy.mcp.servers.replica.answers import Request, slack
from understudy.mcp.servers.replica.channels import PEOPLE, Workspace, channel_id
from understudy.mcp.servers.tasks.draft import Draft, Family, Pick, call
from understudy.mcp.servers.tasks.markets import about, aggs, article, dollars, some_days
from understudy.mcp.settings import Call

_TEXTS = ("The report is ready.", "We meet at noon.", "The door code has changed.", "Thank you all for your help.")
LIST = call("slack_list_channels")


def _messages(channel: str) -> list[dict[str, Any]]:
    return Workspace().messages[channel_id(channel)]


def _members(channel: str) -> int:
    _, listed = slack(Workspace())(Request("/conversations.list", {}, {}))
    return next(int(each["num_members"]) for each in listed["channels"] if each["name"] == channel)


def history(channel: str, limit: int) -> Call:
    """The call for the latest messages of a channel."""
    return call("slack_get_channel_history", channel_id=channel_id(channel), limit=limit)


def sending(channel: str, text: str) -> Call:
    """The call that sends a message."""
    return call("slack_send_message", channel=channel_id(channel), message=text)


def _nth(pick: Pick) -> Draft:
    place = pick.rng.randint(2, 6)
    said = _messages(pick.channel)[place - 1]
    which = ("second", "third", "fourth", "fifth", "sixth")[place - 2]
    prompt = f"Counted from the latest, whose is the {which} message in #{pick.channel}? Give the user's id alone."
    return Draft(prompt, (LIST, history(pick.channel, place)), said["user"], alone=said["user"])


def _announce(pick: Pick) -> Draft:
    sent = sending(pick.channel, f"We are {_members(pick.channel)} now")
    prompt = f'Tell #{pick.channel} its number of members, as "We are 12 now".'
    return Draft(prompt, (LIST, sent), "It is sent.", must=sent)


def _latest(pick: Pick) -> Draft:
    said = _messages(pick.channel)[0]
    gold = (LIST, history(pick.channel, 1))
    prompt = f"Who has written the latest message in #{pick.channel}? Give the user's id alone."
    return Draft(prompt, gold, said["user"], alone=said["user"])


def _count(pick: Pick) -> Draft:
    limit, person = pick.rng.randint(4, 6), pick.rng.choice(PEOPLE)
    count = sum(said["user"] == person for said in _messages(pick.channel)[:limit])
    prompt = f"How many of the {limit} latest messages in #{pick.channel} are by {person}? Say the number alone."
    return Draft(prompt, (LIST, history(pick.channel, limit)), str(count), alone=str(count))


def _send(pick: Pick) -> Draft:
    text = pick.rng.choice(_TEXTS)
    sent = sending(pick.channel, text)
    return Draft(f'Send this message to #{pick.channel}: "{text}"', (LIST, sent), "It is sent.", must=sent)


def _forward(pick: Pick) -> Draft:
    one, other = pick.channels[:2]
    sent = sending(other, _messages(one)[0]["text"])
    prompt = f"Send the text of the latest message of #{one}, word for word, to #{other}."
    return Draft(prompt, (LIST, history(one, 1), sent), "It is sent.", must=sent)


SLACK = (
    Family("nth", "easy", _nth),
    Family("members", "medium", _announce),
    Family("latest", "medium", _latest),
    Family("count", "medium", _count),
    Family("send", "medium", _send),
    Family("forward", "hard", _forward),
)


def _found(pick: Pick) -> Draft:
    company, (day,) = pick.company, some_days(pick, 1)
    word = company.name.split()[0]
    gold = (call("fmp_search_ticker", query=word), aggs(company, day, day))
    prompt = f"What did the shares of {word} close at on {day.date:%-d %B %Y}? I do not know the symbol."
    return Draft(prompt, gold, f"They closed at {dollars(day.close)}.", day.close / 100)


def _post(pick: Pick) -> Draft:
    company, price = pick.company, pick.company.days[-1].close
    sent = sending(pick.channel, f"{company.ticker} closed at {dollars(price)}")
    gold = (call("polygon_get_previous_close", ticker=company.ticker), LIST, sent)
    prompt = f'Tell #{pick.channel} at which price {company.ticker} closed last, as "{company.ticker} closed at 0.00".'
    return Draft(prompt, gold, "It is sent.", must=sent)


def _spread(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    difference = abs(one.days[-1].close - other.price)
    gold = (call("polygon_get_previous_close", ticker=one.ticker), call("fmp_get_quote", symbol=other.ticker))
    prompt = f"How many dollars lie between the last close of {one.ticker} and what {other.ticker} costs now?"
    return Draft(prompt, gold, f"{dollars(difference)} dollars.", difference / 100)


def _quoted(pick: Pick) -> Draft:
    company, number = pick.company, 0
    page = call("tavily_extract", url=article(company, number))
    gold = (call("polygon_get_news", ticker=company.ticker, limit=1), page)
    prompt = f"Read the latest article about {company.ticker}. Whose words does it give?"
    return Draft(prompt, gold, f"Those of {company.ceo}.", text=company.ceo)


def _staff(pick: Pick) -> Draft:
    company, word = pick.company, pick.company.name.split()[0]
    sent = sending(pick.channel, f"{company.ceo}, {company.employees}")
    gold = (call("fmp_search_ticker", query=word), about(company), LIST, sent)
    prompt = f'Tell #{pick.channel} who runs {word} and how many employees it has, just as "First Last, 1234".'
    return Draft(prompt, gold, "It is sent.", must=sent)


SEVERAL = (
    Family("found", "easy", _found),
    Family("spread", "medium", _spread),
    Family("quoted", "medium", _quoted),
    Family("post", "medium", _post),
    Family("staff", "hard", _staff),
)
