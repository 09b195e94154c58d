"""Tests of the retail policy (each row of rules.md names one), of its world, and of the rewards of trivial agents."""

import re
from collections import Counter
from typing import Any

import pytest

from support import script
from support.script import Script, assert_openings_do_not_reveal_refusal, mean_reward
from understudy.core.errors import ToolError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Score, Task
from understudy.domains.authoring.payments import Payment
from understudy.domains.retail import DOMAIN, GENERATOR
from understudy.domains.retail.state import Line, Order, Product, RetailState, User, Variant
from understudy.domains.retail.tools import RetailTools
from understudy.domains.retail.world import build_world
from understudy.envs.calculator import MAX_EXPRESSION_LENGTH, evaluate_expression
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.users.consent import gives_consent
from understudy.envs.users.scripted import SILENCE_TEXTS
from understudy.rollouts.agent import Agent

AMY, BEN = "amy.lee42@mail.com", "ben.ortiz17@mail.com"
ADDRESS, ELSEWHERE = "12 Oak Street, Denver 80202", "7 Mill Street, Austin 73301"
LAMP = Line.model_validate({"id": "i1", "name": "lamp", "option": "small red", "price": "20.00"})
VASE = Line.model_validate({"id": "i5", "name": "vase", "option": "large blue", "price": "9.90"})


def small_shop() -> RetailState:
    """Return a world of two customers.

    Amy has a pending, a delivered and a shipped order of a lamp and a vase each. Ben has one order.
    """
    lamps = {
        "i1": Variant.model_validate({"option": "small red", "price": "20.00"}),
        "i2": Variant.model_validate({"option": "large red", "price": "32.50"}),
        "i3": Variant.model_validate({"option": "large blue", "price": "15.00", "available": False}),
        "i4": Variant.model_validate({"option": "small blue", "price": "15.00"}),
    }
    vases = {"i5": Variant.model_validate({"option": "large blue", "price": "9.90"})}
    payments = {"card_1": Payment(), "gift_2": Payment.model_validate({"balance": "25.00"}), "paypal_3": Payment()}
    statuses = {"W1": "pending", "W2": "delivered", "W3": "shipped", "W9": "pending"}
    orders = {
        key: Order.model_validate(
            {"id": key, "status": status, "address": ADDRESS, "payment": "card_1", "items": (LAMP, VASE)}
        )
        for key, status in statuses.items()
    }
    return RetailState(
        users={
            AMY: User(name="Amy Lee", address=ADDRESS, payments=payments, orders=("W1", "W2", "W3")),
            BEN: User(name="Ben Ortiz", address=ELSEWHERE, payments={"card_1": Payment()}, orders=("W9",)),
        },
        orders=orders,
        products={"lamp": Product(variants=lamps), "vase": Product(variants=vases)},
    )


class Desk(script.Desk):
    """The tools on the small shop. By default Amy is found and her orders are read."""

    def __init__(self, customer: str = AMY, read: bool = True) -> None:
        state = small_shop()
        super().__init__(state, RetailTools(state))
        found = self.do("find_user", email=customer) if customer else {"orders": []}
        for order in found["orders"] if read else ():
            self.do("get_order", order_id=order)

    def balance(self) -> str:
        return str(self.state.users[AMY].payments["gift_2"].balance)


def play(task: Task, agent: Agent) -> tuple[Score, list[Message]]:
    return script.play(DOMAIN, task, agent)


def find_task(family: str, granted: bool, difficulty: str = "easy") -> Task:
    """Return the first task of a family whose request can be granted (or cannot)."""
    tasks = (GENERATOR.make_task("train", 1, family, difficulty, n) for n in range(100))  # type: ignore[arg-type]
    return next(t for t in tasks if granted == any(c.name not in READS for c in t.gold_calls))


READS = {"find_user", "find_user_by_name", "get_user", "get_order", "get_product", "list_products", "calculate"}


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.toolkit.specs()))
def test_tools_refuse_calls_before_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "order_id": "W1", "item_ids": ["i1"], "new_item_ids": ["i2"], "payment_id": "gift_2", "address": ELSEWHERE,
        "reason": "no longer needed", "name": "lamp", "summary": "help", "expression": "1+1",
    }  # fmt: skip
    required = next(spec for spec in DOMAIN.tool_specs if spec.name == tool).parameters.get("required", ())
    if tool not in ("find_user", "find_user_by_name", "calculate"):
        assert "find the customer first" in Desk("").refusal(tool, **{name: arguments[name] for name in required})


def test_the_customer_is_found_by_email_or_by_name_and_zip() -> None:
    for tool, arguments in (
        ("find_user", {"email": f" {AMY.upper()} "}),
        ("find_user_by_name", {"name": "amy lee", "zip": "80202"}),
    ):
        desk = Desk("")
        assert desk.do(tool, **arguments) == {"name": "Amy Lee", "orders": ["W1", "W2", "W3"]}
        assert desk.state.customer == AMY
    assert "no customer" in Desk("").refusal("find_user_by_name", name="Amy Lee", zip="73301")
    assert "no customer" in Desk("").refusal("find_user_by_name", name="Amy Lee", zip="0202")


def test_guessed_values_are_refused_or_unrewarded() -> None:
    desk = Desk()
    assert "no customer" in Desk("").refusal("find_user", email="amy@mail.com")
    assert "no order" in desk.refusal("get_order", order_id="W4")
    assert "no item" in Desk().refusal("return_items", order_id="W2", item_ids=["i2"])
    assert "no payment" in desk.refusal("change_payment", order_id="W1", payment_id="card_2")
    assert "not an address" in desk.refusal("change_address", order_id="W1", address="somewhere")
    task = find_task("address", granted=True)
    wrong = [_replace_address(m, ELSEWHERE) for m in task.gold]
    assert play(task, Script(*wrong))[0].parts["state_match"] == 0.0


def _replace_address(message: Message, address: str) -> Message:
    calls = tuple(
        c.replace(arguments={**c.arguments, "address": address}) if "address" in c.arguments else c
        for c in message.tool_calls
    )
    return message.replace(tool_calls=calls)


def test_one_customer_per_conversation() -> None:
    desk = Desk()
    assert "another customer" in desk.refusal("find_user", email=BEN)
    assert "another customer" in desk.refusal("find_user_by_name", name="Ben Ortiz", zip="73301")
    assert desk.do("find_user", email=AMY)["name"] == "Amy Lee"


def test_other_customers_data_is_refused() -> None:
    desk = Desk()
    assert desk.refusal("get_order", order_id="W9") == desk.refusal("get_order", order_id="W8").replace("W8", "W9")
    assert "no order" in desk.refusal("cancel_order", order_id="W9", reason="no longer needed")
    assert "no order" in desk.refusal("change_address", order_id="W9", address=ELSEWHERE)
    assert desk.do("get_user")["orders"] == ["W1", "W2", "W3"]


def test_fact_counts_only_after_tool_has_shown_it() -> None:
    task = find_task("cancel", granted=False)
    found = next(m for m in task.gold if m.tool_calls)
    asks = [m for m in task.gold[:1] if not m.tool_calls]
    assert (
        play(task, Script(*asks, found, task.gold[-1]))[0].parts.items()
        >= {"state_match": 1.0, "facts_told": 0.0}.items()
    )


def test_change_refused_until_order_is_read() -> None:
    desk = Desk(read=False)
    item: dict[str, Any] = {"order_id": "W2", "item_ids": ["i1"]}
    assert "read order W1 first" in desk.refusal("cancel_order", order_id="W1", reason="no longer needed")
    assert "read order W1 first" in desk.refusal("change_address", order_id="W1", address=ELSEWHERE)
    assert "read order W1 first" in desk.refusal("change_payment", order_id="W1", payment_id="paypal_3")
    assert "read order W2 first" in desk.refusal("return_items", **item)
    assert "read order W2 first" in desk.refusal("exchange_items", **item, new_item_ids=["i2"])
    desk.do("get_order", order_id="W2")
    desk.do("return_items", **item)


def test_one_consent_allows_one_change() -> None:
    task = next(
        t
        for t in (GENERATOR.make_task("train", 1, "several", "medium", n) for n in range(100))
        if [c.name in READS for c in t.gold_calls][-2:] == [False, False]
    )
    first, second = (m for m in task.gold if m.tool_calls and m.tool_calls[0].name not in READS)
    both = first.replace(tool_calls=first.tool_calls + second.tool_calls)
    _, messages = play(task, Script(*task.gold[: task.gold.index(first)], both))
    assert any("confirmed one change" in m.content for m in messages if m.role == "tool")


def test_user_consents_only_to_matching_proposal() -> None:
    task = find_task("return", granted=True)
    proposal = next(m for m in task.gold if "Do you confirm?" in m.content)
    before = task.gold[: task.gold.index(proposal)]
    assert play(task, Script(*before, proposal))[1][-2].content in SILENCE_TEXTS
    for wrong in (
        proposal.content.replace("return", "cancel"),
        re.sub(r"W\d+", "W0000", proposal.content),
        "I will do it. Do you confirm?",
        proposal.content.replace("I will", "I cannot"),
    ):
        _, messages = play(task, Script(*before, gold_text(wrong)))
        assert not any(gives_consent(m.content) for m in messages if m.role == "user")


def test_user_rejects_wrong_option_or_reason() -> None:
    for task, right, wrong in (
        (find_task("exchange", granted=True), r"for the (\w+) \w+ one", r"for the \1 pink one"),
        (find_task("exchange", granted=True), r"the (\w+) (.* for the )\w+", r"the \1 \2\1"),
        (find_task("cancel", granted=True), r"reason: [\w ]+", "reason: you are moving"),
    ):
        asked = next(m for m in task.gold if "Do you confirm?" in m.content)
        before = task.gold[: task.gold.index(asked)]
        for text, agreed in ((asked.content, True), (re.sub(right, wrong, asked.content), False)):
            messages = play(task, Script(*before, gold_text(text)))[1]
            assert agreed == any(gives_consent(m.content) for m in messages if m.role == "user")


def test_refusal_without_reason_fails_facts_told() -> None:
    task = find_task("return", granted=False)
    *before, _ = task.gold
    assert play(task, Script(*before, gold_text("I am sorry, I cannot do that.")))[0].parts["facts_told"] == 0.0
    assert play(task, Script(*task.gold))[0].reward == 1.0


@pytest.mark.parametrize(("order", "status"), [("W2", "delivered"), ("W3", "shipped")])
def test_only_pending_orders_are_cancelled(order: str, status: str) -> None:
    desk = Desk()
    assert f"is {status}" in desk.refusal("cancel_order", order_id=order, reason="no longer needed")
    desk.do("cancel_order", order_id="W1", reason="no longer needed")
    assert desk.state.orders["W1"].status == "cancelled"
    assert "is cancelled" in desk.refusal("cancel_order", order_id="W1", reason="no longer needed")


def test_cancellation_accepts_only_two_reasons() -> None:
    desk = Desk()
    assert "'no longer needed' or 'ordered by mistake'" in desk.refusal("cancel_order", order_id="W1", reason="bored")
    desk.do("cancel_order", order_id="W1", reason="ordered by mistake")
    assert desk.state.orders["W1"].reason == "ordered by mistake"


def test_cancellation_refunds_order() -> None:
    desk = Desk()
    desk.state.patch({"orders": {"W1": {"payment": "gift_2"}}})
    assert desk.do("cancel_order", order_id="W1", reason="no longer needed")["refund"] == "29.90"
    assert desk.balance() == "54.90"


@pytest.mark.parametrize("order", ["W2", "W3"])
def test_address_changes_only_on_pending_orders(order: str) -> None:
    desk = Desk()
    assert "not pending" in desk.refusal("change_address", order_id=order, address=ELSEWHERE)
    desk.do("change_address", order_id="W1", address=f"  {ELSEWHERE.replace(' ', '  ')} ")
    assert desk.state.orders["W1"].address == ELSEWHERE


def test_payment_of_pending_order_changes_to_other_own_method() -> None:
    desk = Desk()
    assert "not pending" in desk.refusal("change_payment", order_id="W2", payment_id="paypal_3")
    assert "already paid" in desk.refusal("change_payment", order_id="W1", payment_id="card_1")
    desk.do("change_payment", order_id="W1", payment_id="paypal_3")
    assert desk.state.orders["W1"].payment == "paypal_3"


def test_gift_card_is_refused_when_balance_is_too_low() -> None:
    desk = Desk()
    assert "is 25.00, which is less than 29.90" in desk.refusal("change_payment", order_id="W1", payment_id="gift_2")
    desk.state.patch({"users": {AMY: {"payments": {"gift_2": {"balance": "12.49"}}}}})
    for tool, order in (("change_items", "W1"), ("exchange_items", "W2")):
        swap: dict[str, Any] = {"order_id": order, "item_ids": ["i1"], "new_item_ids": ["i2"], "payment_id": "gift_2"}
        assert "is 12.49, which is less than 12.50" in desk.refusal(tool, **swap)
    desk.state.patch({"users": {AMY: {"payments": {"gift_2": {"balance": "29.90"}}}}})
    desk.do("change_payment", order_id="W1", payment_id="gift_2")
    assert desk.balance() == "0.00"
    desk.do("change_payment", order_id="W1", payment_id="card_1")
    assert desk.balance() == "29.90"


def test_items_change_once_to_an_available_variant() -> None:
    desk = Desk()
    for new, text in (("i3", "not available"), ("i5", "not another variant"), ("i1", "not another variant")):
        assert text in desk.refusal("change_items", order_id="W1", item_ids=["i1"], new_item_ids=[new])
    assert "each item only once" in desk.refusal(
        "change_items", order_id="W1", item_ids=["i1", "i1"], new_item_ids=["i2"] * 2
    )
    assert "cannot be replaced by" in desk.refusal("change_items", order_id="W1", item_ids=["i1"], new_item_ids=[])
    assert "not pending" in desk.refusal("change_items", order_id="W2", item_ids=["i1"], new_item_ids=["i2"])
    desk.do("change_items", order_id="W1", item_ids=["i1"], new_item_ids=["i2"])
    assert [line.id for line in desk.state.orders["W1"].items] == ["i2", "i5"]
    assert "items modified" in desk.refusal("change_items", order_id="W1", item_ids=["i2"], new_item_ids=["i1"])
    assert "items modified" in desk.refusal("cancel_order", order_id="W1", reason="no longer needed")


def test_delivered_items_are_returned_once() -> None:
    desk = Desk()
    assert "not delivered" in desk.refusal("return_items", order_id="W1", item_ids=["i1"])
    assert "at least one" in desk.refusal("return_items", order_id="W2", item_ids=[])
    assert desk.do("return_items", order_id="W2", item_ids=["i5", "i1"])["refund"] == "29.90"
    assert desk.state.orders["W2"].returned == ("i1", "i5")
    assert "return requested" in desk.refusal("return_items", order_id="W2", item_ids=["i1"])
    assert "return requested" in desk.refusal("exchange_items", order_id="W2", item_ids=["i1"], new_item_ids=["i2"])


def test_a_refund_goes_to_the_payment_or_a_gift_card() -> None:
    for target, stored in (("", "card_1"), ("card_1", "card_1"), ("gift_2", "gift_2")):
        desk = Desk()
        desk.do("return_items", order_id="W2", item_ids=["i1"], refund_to=target)
        assert desk.state.orders["W2"].refund_to == stored
    assert "card_1" in Desk().refusal("return_items", order_id="W2", item_ids=["i1"], refund_to="paypal_3")
    assert "no payment" in Desk().refusal("return_items", order_id="W2", item_ids=["i1"], refund_to="gift_9")


def test_delivered_items_are_exchanged_once() -> None:
    desk = Desk()
    assert "not delivered" in desk.refusal("exchange_items", order_id="W1", item_ids=["i1"], new_item_ids=["i2"])
    assert "not available" in desk.refusal("exchange_items", order_id="W2", item_ids=["i1"], new_item_ids=["i3"])
    desk.do("exchange_items", order_id="W2", item_ids=["i1"], new_item_ids=["i4"])
    assert desk.state.orders["W2"].exchanged == (("i1", "i4"),)
    assert "exchange requested" in desk.refusal("return_items", order_id="W2", item_ids=["i1"])


def test_price_difference_is_charged_or_refunded() -> None:
    for tool, order in (("change_items", "W1"), ("exchange_items", "W2")):
        swap = {"order_id": order, "item_ids": ["i1"], "payment_id": "gift_2"}
        desk = Desk()
        assert desk.do(tool, **swap, new_item_ids=["i2"])["charge"] == "12.50"
        assert desk.balance() == "12.50"
        desk = Desk()
        assert desk.do(tool, **swap, new_item_ids=["i4"])["refund"] == "5.00"
        assert desk.balance() == "30.00"
        desk = Desk()
        desk.do(tool, order_id=order, item_ids=["i1"], new_item_ids=["i4"])
        assert desk.balance() == "25.00"
        assert desk.state.orders[order].difference_by == "card_1"


def test_account_address_change_leaves_orders_unchanged() -> None:
    desk = Desk()
    desk.do("change_user_address", address=ELSEWHERE)
    assert desk.state.users[AMY].address == ELSEWHERE
    assert "orders" not in desk.state.changes()


def test_tools_refuse_calls_after_transfer() -> None:
    desk = Desk()
    desk.do("transfer_to_human", summary="a broken parcel")
    assert "has been transferred" in desk.refusal("get_order", order_id="W1")
    assert "has been transferred" in desk.refusal("change_user_address", address=ELSEWHERE)


def test_unnecessary_transfer_fails_state_match() -> None:
    for task in (find_task("cancel", granted=False), find_task("price", granted=False)):
        *before, last = task.gold
        assert (
            play(task, Script(*before, gold_call("transfer_to_human", summary="no"), last))[0].parts["state_match"]
            == 0.0
        )


def test_partially_completed_task_earns_no_reward() -> None:
    task = next(
        t
        for t in (GENERATOR.make_task("train", 1, "several", "medium", n) for n in range(100))
        if [c.name in READS for c in t.gold_calls][-2:] == [False, False]
    )
    first = next(i for i, m in enumerate(task.gold) if m.tool_calls and m.tool_calls[0].name not in READS)
    assert play(task, Script(*task.gold[: first + 1], gold_text("Done.")))[0].reward == 0.0


def test_world_has_expected_size_and_splits() -> None:
    state = build_world()
    assert (len(state.users), len(state.orders), len(state.products)) == (500, 1000, 50)
    assert [len(GENERATOR.customer_keys(split)) for split in SPLITS] == [400, 50, 50]
    assert len({email for split in SPLITS for email in GENERATOR.customer_keys(split)}) == 500


def test_world_references_are_valid() -> None:
    state = build_world()
    owners = Counter(order for user in state.users.values() for order in user.orders)
    assert owners == Counter(dict.fromkeys(state.orders, 1))
    for user in state.users.values():
        names = [line.name for key in user.orders for line in state.orders[key].items]
        assert len(names) == len(set(names)), "an item identifies an order"
        for key in user.orders:
            assert state.orders[key].payment in user.payments
            assert 1 <= len(state.orders[key].items) <= 3
    for key, order in state.orders.items():
        assert order.id == key
        for line in order.items:
            variant = state.products[line.name].variants[line.id]
            assert (variant.option, variant.price) == (line.option, line.price)


def test_tool_results_stay_short() -> None:
    """Count characters: a small model needs about one token for 2.4 characters."""
    tools = RetailTools(state := build_world().fork())
    for email in GENERATOR.customer_keys("train")[:50]:
        state.customer = email
        assert len(tools.call_sync(ToolCall(name="get_user"))) < 90 * 2.8
        for key in state.users[email].orders:
            if len(state.orders[key].items) <= 2:
                shown = tools.call_sync(ToolCall(name="get_order", arguments={"order_id": key}))
                assert len(shown) < 110 * 2.8
                assert "null" not in shown


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12.50 + 30", "42.50"),
        ("0.1 + 0.2", "0.30"),
        ("(12.50+30)*2", "85.00"),
        ("-$5 + 1", "-4.00"),
        ("10/3", "3.33"),
        ("2*-3", "-6.00"),
    ],
)
def test_evaluate_expression_returns_two_decimals(expression: str, value: str) -> None:
    assert evaluate_expression(expression) == value


INVALID_EXPRESSIONS = "1/0 2**99 9//2 1_2 () (1 abs(1) __import__('os') 1e9 True 1,5 5(3) 007 1.2.3 ( + 1+".split()  # noqa: SIM905
LONG_OR_EMPTY_EXPRESSIONS = [
    "9" * 99 + "*" + "9" * 99,
    "(" * 100 + "1" + ")" * 99,
    "+" * MAX_EXPRESSION_LENGTH,
    "1" * (MAX_EXPRESSION_LENGTH + 1),
    "1 2",
    "",
]


@pytest.mark.parametrize("expression", [*INVALID_EXPRESSIONS, *LONG_OR_EMPTY_EXPRESSIONS])
def test_evaluate_expression_rejects_invalid_input(expression: str) -> None:
    with pytest.raises(ToolError):
        evaluate_expression(expression)


class ReasonGuessingAgent:
    """An agent that finds the customer by the email in the opening and refuses with reasons that are often right."""

    async def act(self, task: Task, episode: Any, new: Any, tools: Any) -> Message:
        episode.observe(new)
        email = re.search(r"[\w.]+@mail\.com", episode.messages[1].content)
        found = [gold_call("find_user", email=email[0])] if email else []
        plan = [
            *found,
            *[gold_text("I cannot do that: it is pending, shipped, delivered, cancelled or unavailable.")] * 9,
        ]
        episode.act(reply := plan[min(episode.num_turns, len(plan) - 1)])
        return reply


@pytest.mark.parametrize(
    "agent",
    [
        Script(gold_call("transfer_to_human", summary="help"), gold_text("You are transferred to a human agent.")),
        Script(*[gold_text("I am sorry, I cannot do that, because the order is delivered.")] * 9),
        Script(*[gold_text("I will do it. Do you confirm?"), gold_text("Done.")] * 4),
        ReasonGuessingAgent(),
    ],
    ids=["transfers", "refuses", "pretends", "guesses"],
)
def test_trivial_agents_earn_no_reward(agent: Agent) -> None:
    assert mean_reward(DOMAIN, agent, DOMAIN.sample("validation", 120, seed=5)) == 0.0


def test_opening_does_not_reveal_whether_request_is_granted() -> None:
    """The most predictive word of easy openings is nearly as frequent in granted as in refused requests."""
    tasks = [
        GENERATOR.make_task("train", 2, family, "easy", n)
        for family in ("cancel", "return", "address")
        for n in range(300)
    ]
    refused = [t for t in tasks if t.outputs]
    assert 0.22 < len(refused) / len(tasks) < 0.34
    assert_openings_do_not_reveal_refusal(tasks, [bool(t.outputs) for t in tasks], 0.15, 0.42)
