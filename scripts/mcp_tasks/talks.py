"""Tasks for slack, and for several servers at once."""

from typing import Any

from mcp_tasks.draft import Draft, Family, Pick, call
from mcp_tasks.markets import about, aggs, article, dollars, some_days
from support.replica.answers import Request, slack
from support.replica.channels import PEOPLE, Workspace, channel_id
from understudy.sources.mcp.config import MCPCall

_TEXTS = ("The report is ready.", "We meet at noon.", "The door code has changed.", "Thank you all for your help.")
LIST = call("slack_list_channels")


def _messages(channel: str) -> list[dict[str, Any]]:
    return Workspace().messages[channel_id(channel)]


def _members(channel: str) -> int:
    _, listed = slack(Workspace())(Request("/conversations.list", {}, {}))
    return next(int(each["num_members"]) for each in listed["channels"] if each["name"] == channel)


def history(channel: str, limit: int) -> MCPCall:
    """Return the call for the latest messages of a channel."""
    return call("slack_get_channel_history", channel_id=channel_id(channel), limit=limit)


def sending(channel: str, text: str) -> MCPCall:
    """Return the call that sends a message."""
    return call("slack_send_message", channel=channel_id(channel), message=text)


def _nth(pick: Pick) -> Draft:
    place = pick.rng.randint(2, 6)
    said = _messages(pick.channel)[place - 1]
    which = (
        *("second most recent", "third most recent", "fourth most recent"),
        "fifth most recent",
        "sixth most recent",
    )[place - 2]
    prompt = pick.ask(
        f"Who wrote the {which} message in #{pick.channel}? Answer only with the user id.",
        f"Who is the author of the {which} message in #{pick.channel}? Reply with the user id only.",
        f"Who posted the {which} message in #{pick.channel}? Give only the user id.",
    )
    return Draft(prompt, (LIST, history(pick.channel, place)), said["user"], alone=said["user"])


def _announce(pick: Pick) -> Draft:
    sent = sending(pick.channel, f"We are {_members(pick.channel)} now")
    prompt = pick.ask(
        f'Tell #{pick.channel} its number of members, like "We are 12 now".',
        f'Post the number of members of #{pick.channel} in that channel, like "We are 12 now".',
        f'Let #{pick.channel} know its number of members: "We are 12 now".',
    )
    return Draft(prompt, (LIST, sent), "The message has been sent.", must=sent)


def _latest(pick: Pick) -> Draft:
    said = _messages(pick.channel)[0]
    gold = (LIST, history(pick.channel, 1))
    prompt = pick.ask(
        f"Who wrote the latest message in #{pick.channel}? Answer only with the user id.",
        f"Who sent the most recent message in #{pick.channel}? Reply with the user id only.",
        f"Who is the author of the newest message in #{pick.channel}? Give only the user id.",
    )
    return Draft(prompt, gold, said["user"], alone=said["user"])


def _count(pick: Pick) -> Draft:
    limit, person = pick.rng.randint(4, 6), pick.rng.choice(PEOPLE)
    count = sum(said["user"] == person for said in _messages(pick.channel)[:limit])
    prompt = pick.ask(
        f"How many of the {limit} latest messages in #{pick.channel} are by {person}? Answer only with the number.",
        f"Of the last {limit} messages in #{pick.channel}, how many did {person} write? Reply with the number only.",
        f"How many messages by {person} are among the {limit} newest in #{pick.channel}? Give only the number.",
    )
    return Draft(prompt, (LIST, history(pick.channel, limit)), str(count), alone=str(count))


def _send(pick: Pick) -> Draft:
    text = pick.rng.choice(_TEXTS)
    sent = sending(pick.channel, text)
    prompt = pick.ask(
        f'Send this message to #{pick.channel}: "{text}"',
        f'Post in #{pick.channel}: "{text}"',
        f'Write to #{pick.channel}: "{text}"',
    )
    return Draft(prompt, (LIST, sent), "The message has been sent.", must=sent)


def _forward(pick: Pick) -> Draft:
    one, other = pick.channels[:2]
    sent = sending(other, _messages(one)[0]["text"])
    prompt = pick.ask(
        f"Send the text of the latest message in #{one}, word for word, to #{other}.",
        f"Copy the most recent message of #{one} to #{other}, without changing a word.",
        f"Forward the newest message in #{one} to #{other}, word for word.",
    )
    return Draft(prompt, (LIST, history(one, 1), sent), "The message has been sent.", must=sent)


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
    when = f"{day.date:%B %-d, %Y}"
    prompt = pick.ask(
        f"What did the shares of {word} close at on {when}? I don't know the symbol.",
        f"What was the closing price of {word} on {when}? You have to look up the symbol.",
        f"Find the symbol of {word} and tell me its close on {when}.",
    )
    return Draft(prompt, gold, f"They closed at {dollars(day.close)}.", day.close / 100)


def _post(pick: Pick) -> Draft:
    company, price = pick.company, pick.company.days[-1].close
    sent = sending(pick.channel, f"{company.ticker} closed at {dollars(price)}")
    gold = (call("polygon_get_previous_close", ticker=company.ticker), LIST, sent)
    prompt = pick.ask(
        f'Tell #{pick.channel} the last close of {company.ticker}, in the form "{company.ticker} closed at 0.00".',
        f'Post the previous close of {company.ticker} in #{pick.channel}, like "{company.ticker} closed at 0.00".',
        f'Let #{pick.channel} know what {company.ticker} last closed at: "{company.ticker} closed at 0.00".',
    )
    return Draft(prompt, gold, "The message has been sent.", must=sent)


def _spread(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    difference = abs(one.days[-1].close - other.price)
    gold = (call("polygon_get_previous_close", ticker=one.ticker), call("fmp_get_quote", symbol=other.ticker))
    prompt = pick.ask(
        f"What is the dollar difference between the last close of {one.ticker} and today's price of {other.ticker}?",
        f"By how many dollars do the previous close of {one.ticker} and the current price of {other.ticker} differ?",
        f"How many dollars apart are the last close of {one.ticker} and today's price of {other.ticker}?",
    )
    return Draft(prompt, gold, f"The difference is {dollars(difference)} dollars.", difference / 100)


def _quoted(pick: Pick) -> Draft:
    company, number = pick.company, 0
    page = call("tavily_extract", url=article(company, number))
    gold = (call("polygon_get_news", ticker=company.ticker, limit=1), page)
    prompt = pick.ask(
        f"Read the latest article about {company.ticker}. Who is quoted in it?",
        f"Who is quoted in the newest {company.ticker} article?",
        f"Find the most recent article on {company.ticker} and tell me whom it quotes.",
    )
    return Draft(prompt, gold, f"It quotes {company.ceo}.", text=company.ceo)


def _staff(pick: Pick) -> Draft:
    company, word = pick.company, pick.company.name.split()[0]
    sent = sending(pick.channel, f"{company.ceo}, {company.employees}")
    gold = (call("fmp_search_ticker", query=word), about(company), LIST, sent)
    prompt = pick.ask(
        f'Tell #{pick.channel} who runs {word} and how many employees it has, in the form "First Last, 1234".',
        f'Post the CEO of {word} and its number of employees in #{pick.channel}, like "First Last, 1234".',
        f'Let #{pick.channel} know the CEO and the number of employees of {word}. Write only "First Last, 1234".',
    )
    return Draft(prompt, gold, "The message has been sent.", must=sent)


SEVERAL = (
    Family("found", "easy", _found),
    Family("spread", "medium", _spread),
    Family("quoted", "medium", _quoted),
    Family("post", "medium", _post),
    Family("staff", "hard", _staff),
)
