"""Tests of the food delivery policy: each row of rules.md names one of these tests."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from support.delivery import (
    AMY,
    BEN,
    ELSEWHERE,
    FAR,
    HOME,
    Desk,
    make_order,
    play,
    proposal_turn,
    task_of_family,
    task_with_two_changes,
    turns_before,
    write_turns,
)
from support.script import Script
from understudy.core.errors import ToolError
from understudy.core.messages import Message
from understudy.domains.doordash import DOMAIN, GENERATOR
from understudy.domains.doordash.goals.basket import choice_variants
from understudy.domains.doordash.policy_rules import late_credit
from understudy.domains.doordash.state import NOW, Choice, format_time, format_time_ago
from understudy.domains.doordash.world import build_world
from understudy.envs.gold import gold_call, gold_text
from understudy.envs.rewards import states_fact
from understudy.envs.users.consent import gives_consent


@pytest.mark.parametrize("tool", sorted(spec.name for spec in DOMAIN.toolkit.specs()))
def test_tools_refuse_calls_before_customer_is_found(tool: str) -> None:
    arguments: dict[str, Any] = {
        "order_id": "D1", "restaurant": "Tamarind", "name": "Tamarind", "items": ["Cola"], "payment": "card_1",
        "cuisine": "thai", "code": "SAVE3", "address": ELSEWHERE, "dropoff": "meet outside", "tip": 1, "to": "credit",
        "amount": 3, "summary": "help", "expression": "1+1",
    }  # fmt: skip
    if tool == "place_order":
        arguments["items"] = [{"item": "Dal"}]
    required = next(spec for spec in DOMAIN.tool_specs if spec.name == tool).parameters.get("required", ())
    if tool not in ("find_customer", "find_customer_by_phone", "calculate"):
        assert "find the customer first" in Desk("").refusal(tool, **{name: arguments[name] for name in required})


def test_the_customer_is_found_by_email_or_by_phone() -> None:
    for tool, arguments in (
        ("find_customer", {"email": f" {AMY.upper()} "}),
        ("find_customer_by_phone", {"phone": "555-1"}),
    ):
        desk = Desk("")
        found = desk.do(tool, **arguments)
        assert found["name"] == "Amy Lee"
        assert found["orders"] == dict.fromkeys(("D1", "D2", "D3", "D4", "D5", "D6", "D7"), "Tamarind")
        assert desk.state.customer == AMY
    assert "no customer" in Desk("").refusal("find_customer_by_phone", phone="555-3")


def test_guessed_values_are_refused_or_unrewarded() -> None:
    desk = Desk()
    assert "no customer" in Desk("").refusal("find_customer", email="amy@mail.com")
    assert "no order" in desk.refusal("get_order", order_id="D8")
    assert "no 'Fries'" in desk.refusal("refund_items", order_id="D5", items=["Fries"], to="credit")
    for name in ("Tamarin", " Tamarind"):
        assert "no restaurant" in desk.refusal("get_restaurant", name=name)
        assert "no restaurant" in desk.refusal("place_order", **desk.place("Pad Thai", restaurant=name))
    assert "no promotion" in desk.refusal("get_promotion", code="SAVE4")
    assert "no option 'spicy'; it has tofu, large" in desk.refusal(
        "place_order", **desk.place() | {"items": [{"item": "Pad Thai", "options": ["spicy"]}]}
    )
    assert "not an address" in desk.refusal("change_address", order_id="D1", address="somewhere")
    task = task_of_family("tip", granted=True)
    (change,) = write_turns(task)
    wrong = gold_call("change_tip", **change.tool_calls[0].arguments | {"tip": 9.99})
    turns = [wrong if m == change else m for m in task.gold_turns]
    assert play(task, Script(*turns))[0].parts["state_match"] == 0.0


def test_one_customer_per_conversation() -> None:
    desk = Desk()
    assert "another customer" in desk.refusal("find_customer", email=BEN)
    assert "another customer" in desk.refusal("find_customer_by_phone", phone="555-2")
    assert desk.do("find_customer", email=AMY)["name"] == "Amy Lee"


def test_other_customers_data_is_refused() -> None:
    desk = Desk()
    assert desk.refusal("get_order", order_id="D9") == desk.refusal("get_order", order_id="D8").replace("D8", "D9")
    with pytest.raises(ToolError) as caught:
        desk.do("get_order", order_id="D9")
    assert caught.value.kind == "forbidden"
    assert "no order" in desk.refusal("cancel_order", order_id="D9")
    assert "no payment method 'card_9'" in desk.refusal("place_order", **desk.place("Pad Thai", payment="card_9"))


def test_fact_counts_only_after_tool_has_shown_it() -> None:
    task = task_of_family("dropoff", granted=False)
    blind = [m for m in task.gold_turns if not m.tool_calls or m.tool_calls[0].name == "find_customer"]
    assert play(task, Script(*blind))[0].parts.items() >= {"state_match": 1.0, "facts_told": 0.0}.items()
    assert play(task, Script(*task.gold_turns))[0].reward == 1.0


def test_change_refused_until_order_is_read() -> None:
    desk = Desk(read=False)
    desk.do("get_customer")
    for tool, arguments in (
        ("cancel_order", {}),
        ("change_items", {"remove": ["Cola"]}),
        ("change_address", {"address": ELSEWHERE}),
        ("change_dropoff", {"dropoff": "meet outside"}),
        ("change_tip", {"tip": 3}),
        ("apply_promotion", {"code": "SAVE3"}),
        ("refund_items", {"items": ["Cola"], "to": "credit"}),
        ("redeliver_items", {"items": ["Cola"]}),
        ("credit_late_delivery", {"amount": 6}),
    ):
        assert "read order D5 first" in desk.refusal(tool, order_id="D5", **arguments)
    desk.do("get_order", order_id="D1")
    desk.do("cancel_order", order_id="D1")


def test_guessing_between_two_orders_fails_state_match() -> None:
    tasks = (GENERATOR.make_task("train", 1, "dropoff", "medium", n) for n in range(200))
    task = next(t for t in tasks if write_turns(t) and any("Which order is it?" in m.content for m in t.gold_turns))
    right = write_turns(task)[0].tool_calls[0].arguments["order_id"]
    (wrong,) = set(re.findall(r"D\d{4}", task.scenario.opening)) - {right}
    swapped = [_replace_text(m, right, wrong) for m in task.gold_turns if "Which order is it?" not in m.content]
    assert play(task, Script(*swapped))[0].parts["state_match"] == 0.0
    assert play(task, Script(*task.gold_turns))[0].reward == 1.0


def _replace_text(message: Message, old: str, new: str) -> Message:
    calls = tuple(
        c.replace(arguments=json.loads(json.dumps(c.arguments).replace(old, new))) for c in message.tool_calls
    )
    return message.replace(content=message.content.replace(old, new), tool_calls=calls)


def test_one_consent_allows_one_change() -> None:
    task = task_with_two_changes()
    first, second = write_turns(task)
    both = first.replace(tool_calls=first.tool_calls + second.tool_calls)
    reads = [m for m in task.gold_turns if m.tool_calls and m.tool_calls[0].name == "get_order"]
    start = turns_before(task, proposal_turn(task))
    turns = (*start, *(m for m in reads if m not in start), proposal_turn(task), both)
    _, messages = play(task, Script(*turns))
    assert any("confirmed one change" in m.content for m in messages if m.role == "tool")


def test_user_consents_only_to_matching_proposal() -> None:
    task = task_of_family("missing", granted=True)
    proposal = proposal_turn(task)
    amount = task.outputs[0]
    for text, agreed in (
        (proposal.content, True),
        (re.sub(r"D\d+", "D0000", proposal.content), False),
        (proposal.content.replace(amount, "99.99"), False),
        ("I will do it. Do you confirm?", False),
        (proposal.content.replace("I will", "I cannot"), False),
    ):
        _, messages = play(task, Script(*turns_before(task, proposal), gold_text(text)))
        assert agreed == any(gives_consent(m.content) for m in messages if m.role == "user")


def test_user_rejects_wrong_credit_quantity_or_option() -> None:
    task = task_of_family("late", granted=True)
    proposal = proposal_turn(task)
    for text, agreed in ((proposal.content, True), (re.sub(r"credit [\d.]+", "credit 4.50", proposal.content), False)):
        _, messages = play(task, Script(*turns_before(task, proposal), gold_text(text)))
        assert agreed == any(gives_consent(m.content) for m in messages if m.role == "user")
    choice = Choice(item="Margherita", options=("large",), quantity=2)
    names = (
        "2x Margherita (large)",
        "two large Margheritas",
        "2 Margheritas",
        "Margherita (large) x2",
        "Margherita (2x)",
    )
    assert all(states_fact(choice_variants(choice), f"order {name} for 20.00") for name in names)
    assert not any(
        states_fact(choice_variants(choice), name) for name in ("7x Margherita", "Margherita (large)", "12 Margherita")
    )


@pytest.mark.parametrize("family", ["cancel", "items", "promotion", "missing", "place", "again"])
def test_refusal_without_reason_fails_facts_told(family: str) -> None:
    task = task_of_family(family, granted=False)
    *earlier, _ = task.gold
    assert play(task, Script(*earlier, gold_text("I am sorry, I cannot do that.")))[0].parts["facts_told"] == 0.0
    assert play(task, Script(*task.gold_turns))[0].reward == 1.0


def test_cancellation_is_free_while_order_is_placed() -> None:
    desk = Desk()
    desk.state.patch({"orders": {"D1": {"payment": "credit"}}})
    assert desk.do("cancel_order", order_id="D1") == {"status": "cancelled", "refund": "22.00"}
    assert desk.credit == "32.00"
    assert desk.state.orders["D1"].cancellation_fee is None
    assert "is cancelled" in desk.refusal("cancel_order", order_id="D1")


def test_cancellation_has_fee_once_order_is_accepted() -> None:
    desk = Desk()
    assert desk.do("cancel_order", order_id="D2")["refund"] == "17.00"
    assert desk.state.orders["D2"].cancellation_fee == Decimal("5.00")
    tasks = (GENERATOR.make_task("train", 1, "cancel", "easy", n) for n in range(100))
    task = next(t for t in tasks if any("for a fee of 5.00" in m.content for m in t.gold_turns))
    proposal = proposal_turn(task)
    hidden = gold_text(proposal.content.replace(" for a fee of 5.00", ""))
    _, messages = play(task, Script(*turns_before(task, proposal), hidden))
    assert not any(gives_consent(m.content) for m in messages if m.role == "user")


@pytest.mark.parametrize("key", ["D3", "D4", "D5", "D7"])
def test_cancellation_refused_once_order_is_prepared(key: str) -> None:
    assert "it must be placed or accepted" in Desk().refusal("cancel_order", order_id=key)


def test_items_change_only_before_preparation() -> None:
    for key in ("D3", "D4", "D5", "D7"):
        assert "placed or accepted" in Desk().refusal("change_items", order_id=key, remove=["Cola"])
    desk = Desk()
    assert desk.do("change_items", order_id="D1", remove=["Cola"])["refund"] == "3.00"
    added = desk.do("change_items", order_id="D2", add=[{"item": "Dal", "quantity": 2}])
    assert added["charge"] == "18.00"
    assert [(line.name, line.quantity) for line in desk.state.orders["D2"].items] == [
        ("Cola", 1), ("Dal", 2), ("Pad Thai", 1),
    ]  # fmt: skip
    assert "give dishes" in desk.refusal("change_items", order_id="D2")
    assert "no 'Cola'" in desk.refusal("change_items", order_id="D1", remove=["Cola"])
    assert "each dish only once" in desk.refusal("change_items", order_id="D1", add=[{"item": "Pad Thai"}])
    assert "sold out" in desk.refusal("change_items", order_id="D1", add=[{"item": "Samosas"}])
    assert "cancel the order" in desk.refusal("change_items", order_id="D1", remove=["Pad Thai"])


def test_change_items_keeps_order_above_minimum() -> None:
    desk = Desk()
    desk.menu(minimum="14.51")
    assert "cost 14.50" in desk.refusal("change_items", order_id="D1", remove=["Cola"])
    desk.menu(minimum="14.50")
    desk.do("change_items", order_id="D1", remove=["Cola"])
    desk.do("apply_promotion", order_id="D2", code="SAVE3")
    assert "SAVE3 requires items for at least 15.00" in desk.refusal("change_items", order_id="D2", remove=["Cola"])


def test_promotions_do_not_stack() -> None:
    desk = Desk()
    assert desk.do("apply_promotion", order_id="D1", code="save3")["refund"] == "3.00"
    assert (desk.state.orders["D1"].promotion, desk.state.orders["D1"].total) == ("SAVE3", Decimal("19.00"))
    for code in ("SAVE3", "PLUS5"):
        assert "cannot be combined" in desk.refusal("apply_promotion", order_id="D1", code=code)


@pytest.mark.parametrize(
    ("code", "text"),
    [("OLD3", "expired on 2025-05-15"), ("BIG9", "requires items for at least 17.51"), ("PLUS5", "for members only")],
)
def test_promotion_refused_unless_terms_are_met(code: str, text: str) -> None:
    desk = Desk()
    assert text in desk.refusal("apply_promotion", order_id="D1", code=code)
    assert text in desk.refusal("place_order", **desk.place("Pad Thai", "Cola", promotion=code))
    assert "placed or accepted" in desk.refusal("apply_promotion", order_id="D3", code="SAVE3")
    desk.account(member=True)
    assert desk.do("apply_promotion", order_id="D1", code="PLUS5")["refund"] == "5.00"


def test_addresses_change_within_the_area_until_pick_up() -> None:
    for key in ("D4", "D5", "D7"):
        assert "it must be placed" in Desk().refusal("change_address", order_id=key, address=ELSEWHERE)
    for key in ("D1", "D2", "D3"):
        desk = Desk()
        assert "Midtown is outside the area of the restaurant, Harbor" in desk.refusal(
            "change_address", order_id=key, address=FAR
        )
        desk.do("change_address", order_id=key, address=f"  {ELSEWHERE.replace(' ', '  ')} ")
        assert desk.state.orders[key].address == ELSEWHERE


def test_the_dropoff_changes_until_delivery() -> None:
    for key in ("D5", "D7"):
        assert "it must be" in Desk().refusal("change_dropoff", order_id=key, dropoff="meet outside")
    for key in ("D1", "D2", "D3", "D4"):
        desk = Desk()
        desk.do("change_dropoff", order_id=key, dropoff="leave at the door")
        assert desk.state.orders[key].dropoff == "leave at the door"
    assert "leave with reception" in Desk().refusal("change_dropoff", order_id="D1", dropoff="through the window")


def test_tips_are_raised_any_time_and_lowered_for_an_hour() -> None:
    assert "cancelled" in Desk().refusal("change_tip", order_id="D7", tip=5)
    for key in ("D1", "D4", "D5", "D6"):
        assert Desk().do("change_tip", order_id=key, tip=4.5) == {"status": "tip changed", "charge": "2.50"}
    assert Desk().do("change_tip", order_id="D4", tip=0)["refund"] == "2.00"
    assert "can only be raised" in Desk().refusal("change_tip", order_id="D5", tip=1)
    desk = Desk()
    assert "already 2.00" in desk.refusal("change_tip", order_id="D1", tip=2)
    desk.state.patch({"orders": {"D5": {"delivered": format_time_ago(minutes=61)}}})
    assert "can only be raised" in desk.refusal("change_tip", order_id="D5", tip=1)
    desk.state.patch({"orders": {"D5": {"delivered": format_time_ago(minutes=60)}}})
    assert desk.do("change_tip", order_id="D5", tip=1)["refund"] == "1.00"
    assert "greater than or equal to 0" in desk.refusal("change_tip", order_id="D1", tip=-1)
    for tip in (1e30, 10**40, "9" * 60):
        assert "tip: Value error, too large an amount" in desk.refusal("change_tip", order_id="D1", tip=tip)


def test_courier_is_tracked_only_after_pickup() -> None:
    desk = Desk()
    assert desk.do("track_courier", order_id="D4") == {"courier": "Kim", "vehicle": "scooter", "minutes": 7}
    assert "D3 is preparing" in desk.refusal("track_courier", order_id="D3")


def test_place_order_requires_reading_account_and_restaurant() -> None:
    desk = Desk(read=False)
    assert "read the customer's account first" in desk.refusal("place_order", **desk.place("Pad Thai"))
    desk.do("get_customer")
    assert "read the restaurant Tamarind first" in desk.refusal("place_order", **desk.place("Pad Thai"))
    desk.do("get_restaurant", name="Tamarind")
    desk.do("place_order", **desk.place("Pad Thai"))


def test_place_order_checks_area_menu_minimum_and_hours() -> None:
    desk = Desk()
    assert "only delivers in Midtown" in desk.refusal("place_order", **desk.place("Pad Thai", restaurant="Lemongrass"))
    assert "sold out" in desk.refusal("place_order", **desk.place("Pad Thai", "Samosas"))
    assert "the minimum order at Tamarind is 10.00" in desk.refusal("place_order", **desk.place("Dal"))
    assert "each dish only once" in desk.refusal("place_order", **desk.place("Pad Thai", "Pad Thai"))
    assert "at least one" in desk.refusal("place_order", **desk.place())
    for hours in ({"closes": "19:30"}, {"opens": "19:31"}):
        shut = Desk()
        shut.menu(**hours)
        assert "it is now 19:30" in shut.refusal("place_order", **shut.place("Pad Thai"))
        assert shut.do("search_restaurants", cuisine="thai")[0]["closed"]
    desk.menu(paused=True)
    assert "has paused" in desk.refusal("place_order", **desk.place("Pad Thai"))
    desk.menu(paused=False, opens="19:30", closes="19:31")
    assert desk.do("search_restaurants", cuisine="thai") == [
        {"name": "Tamarind", "delivery_fee": "2.50", "minimum": "10.00"}
    ]
    assert desk.do("place_order", **desk.place("Pad Thai"))["order_id"] == "D9001"
    placed = desk.state.orders["D9001"]
    assert (placed.status, placed.placed, placed.address) == ("placed", format_time(NOW), HOME)
    assert desk.state.customers[AMY].orders[-1] == "D9001"
    assert desk.do("place_order", **desk.place("Pad Thai"))["order_id"] == "D9002"


def test_members_pay_no_delivery_fee() -> None:
    for member, charge in ((False, "14.50"), (True, "12.00")):
        desk = Desk()
        desk.account(member=member)
        assert desk.do("place_order", **desk.place("Pad Thai"))["charge"] == charge


def test_user_rejects_order_proposal_without_total() -> None:
    desk = Desk()
    items = [{"item": "Pad Thai", "options": ["large", "tofu"], "quantity": 2}, {"item": "Cola"}]
    done = desk.do("place_order", **desk.place(tip=1.5, promotion="SAVE3") | {"items": items})
    assert done["charge"] == "39.00"  # 2 * (12 + 3 + 2.50) + 3 + 2.50 + 1.50 - 3
    task = task_of_family("place", granted=True)
    proposal = proposal_turn(task)
    hidden = gold_text(proposal.content.replace(f" for {task.outputs[0]}", ""))
    _, messages = play(task, Script(*turns_before(task, proposal), hidden))
    assert not any(gives_consent(m.content) for m in messages if m.role == "user")


def test_place_order_requires_own_payment_with_balance() -> None:
    desk = Desk()
    assert "no payment method 'card_2'; they have card_1, paypal_2, credit" in desk.refusal(
        "place_order", **desk.place("Pad Thai", payment="card_2")
    )
    assert "the credit is 10.00, which is less than 14.50" in desk.refusal(
        "place_order", **desk.place("Pad Thai", payment="credit")
    )
    desk.account(credit="14.50")
    desk.do("place_order", **desk.place("Pad Thai", payment="credit"))
    assert desk.credit == "0.00"


def test_alcohol_requires_legal_age_on_file() -> None:
    for age in ("not on file", "under age"):
        desk = Desk()
        desk.account(age=age)
        assert f"is {age}" in desk.refusal("place_order", **desk.place("Pad Thai", "Lager"))
        assert f"is {age}" in desk.refusal("change_items", order_id="D1", add=[{"item": "Lager"}])
    assert Desk().do("place_order", **Desk().place("Pad Thai", "Lager"))["charge"] == "19.50"


def test_gold_checks_allergens_against_menu() -> None:
    tasks = [GENERATOR.make_task("train", 1, "allergy", "easy", n) for n in range(40)]
    listed = [any(m.content.startswith("The menu lists no ") for m in t.gold_turns) for t in tasks]
    assert 20 <= sum(listed) < 40
    for task, no in zip(tasks, listed, strict=True):
        (change,) = write_turns(task)
        (dish,) = (item["item"] for item in change.tool_calls[0].arguments["items"])
        told = next(m.content for m in task.gold_turns if m.content.startswith("The menu lists"))
        allergen, first = re.findall(r"lists (?:no )?(\w+) for the (.+?)\. I will", told)[0]
        place = change.tool_calls[0].arguments["restaurant"]
        assert (allergen not in build_world().restaurants[place].menu[first].allergens) == no
        assert (dish == first) == no
        assert allergen not in build_world().restaurants[place].menu[dish].allergens
        if dish != first:
            wrong = [_replace_text(m, dish, first) for m in task.gold_turns]
            assert play(task, Script(*wrong))[0].reward == 0.0


CLAIMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("refund_items", {"items": ["Cola"], "to": "credit"}),
    ("redeliver_items", {"items": ["Cola"]}),
    ("credit_late_delivery", {"amount": 6}),
)


@pytest.mark.parametrize(("tool", "arguments"), CLAIMS)
def test_claims_are_made_within_48_hours_of_the_delivery(tool: str, arguments: dict[str, Any]) -> None:
    desk = Desk()
    for key in ("D1", "D2", "D3", "D4", "D7"):
        assert "it must be delivered" in desk.refusal(tool, order_id=key, **arguments)
    assert "more than 48 hours ago" in desk.refusal(tool, order_id="D6", **arguments)
    desk.state.patch({"orders": {"D6": {"delivered": format_time_ago(hours=48)}}})
    desk.do(tool, order_id="D6", **arguments)


@pytest.mark.parametrize(("tool", "arguments"), CLAIMS)
def test_claim_refused_until_account_is_read(tool: str, arguments: dict[str, Any]) -> None:
    desk = Desk(read=False)
    desk.do("get_order", order_id="D5")
    desk.do("get_restaurant", name="Tamarind")
    assert "read the customer's account first" in desk.refusal(tool, order_id="D5", **arguments)
    desk.do("get_customer")
    desk.do(tool, order_id="D5", **arguments)


def test_second_claim_for_dish_is_refused() -> None:
    for tool, arguments in CLAIMS[:2]:
        desk = Desk()
        desk.do(tool, order_id="D5", **arguments)
        for again, same in CLAIMS[:2]:
            assert "already" in desk.refusal(again, order_id="D5", **same)
        desk.do("refund_items", order_id="D5", items=["Pad Thai"], to="credit")


def test_refund_equals_dish_price_less_discount() -> None:
    desk = Desk()
    done = desk.do("refund_items", order_id="D5", items=["Pad Thai", "Cola"], to="payment")
    assert done == {"status": "refunded to payment", "refund": "17.50"}
    desk = Desk()
    desk.state.patch({"orders": {"D5": {"promotion": "SAVE3", "discount": "3.00"}}})
    assert desk.do("refund_items", order_id="D5", items=["Pad Thai"], to="credit")["refund"] == "14.50"
    assert "has been refunded" in desk.refusal("refund_items", order_id="D5", items=["Cola"], to="credit")


def test_refund_goes_to_payment_or_credit() -> None:
    desk = Desk()
    desk.do("refund_items", order_id="D5", items=["Cola"], to="credit")
    assert desk.credit == "13.00"
    desk.do("refund_items", order_id="D5", items=["Pad Thai"], to="payment")
    assert desk.credit == "13.00"
    assert desk.state.orders["D5"].refunded == {"Cola": "credit", "Pad Thai": "payment"}
    assert "'payment' or 'credit'" in desk.refusal("refund_items", order_id="D5", items=["Cola"], to="paypal_2")


def test_redelivery_requires_open_restaurant_and_stock() -> None:
    for fields, text in (
        ({"paused": True}, "has paused"),
        ({"closes": "19:00"}, "it is now 19:30"),
        ({"menu": {"Cola": {"sold_out": True}}}, "sold out"),
    ):
        desk = Desk()
        desk.menu(**fields)
        assert text in desk.refusal("redeliver_items", order_id="D5", items=["Cola"])
    desk = Desk()
    desk.do("redeliver_items", order_id="D5", items=["Pad Thai", "Cola"])
    assert desk.state.orders["D5"].redelivered == ("Cola", "Pad Thai")
    assert desk.credit == "10.00"


@pytest.mark.parametrize(
    ("late", "amount"), [(-5, 0), (14, 0), (15, 3), (29, 3), (30, 6), (59, 6), (60, 10), (300, 10)]
)
def test_late_credit_depends_on_minutes_late(late: int, amount: int) -> None:
    came = make_order(
        "D5", "delivered", promised=format_time_ago(minutes=120 + late), delivered=format_time_ago(minutes=120)
    )
    assert late_credit(came) == amount
    desk = Desk()
    desk.state.orders["D5"] = came
    if not amount:
        assert "not late enough" in desk.refusal("credit_late_delivery", order_id="D5", amount=3)
        return
    assert "one of 3.00, 6.00, 10.00" in desk.refusal("credit_late_delivery", order_id="D5", amount=5)
    desk.do("credit_late_delivery", order_id="D5", amount=amount)
    assert desk.credit == f"{10 + amount}.00"


def test_wrong_late_credit_amount_earns_no_reward() -> None:
    task = task_of_family("late", granted=True)
    (right,) = task.outputs
    for amount in ("3.00", "6.00", "10.00"):
        turns = [_replace_amount(m, right, amount) for m in task.gold_turns]
        assert play(task, Script(*turns))[0].reward == (amount == right)


def _replace_amount(message: Message, old: str, new: str) -> Message:
    calls = tuple(
        c.replace(arguments={**c.arguments, "amount": float(new)}) if "amount" in c.arguments else c
        for c in message.tool_calls
    )
    return message.replace(content=message.content.replace(old, new), tool_calls=calls)


def test_second_late_credit_is_refused() -> None:
    desk = Desk()
    desk.do("credit_late_delivery", order_id="D5", amount=6)
    assert "late credit of 6.00" in desk.refusal("credit_late_delivery", order_id="D5", amount=6)


@pytest.mark.parametrize(("tool", "arguments"), CLAIMS)
def test_claim_refused_after_three_refunds(tool: str, arguments: dict[str, Any]) -> None:
    desk = Desk()
    desk.account(refunds=["2025-04-16", "2025-05-01", "2025-05-16"])
    assert "3 refunds in 30 days; a human agent must decide" in desk.refusal(tool, order_id="D5", **arguments)
    desk.account(refunds=["2025-04-15", "2025-05-01", "2025-05-16"])
    desk.do(tool, order_id="D5", **arguments)
    assert desk.state.customers[AMY].refunds[-1] == "2025-05-16"
    limit = next(
        t
        for t in (GENERATOR.make_task("train", 1, "handover", "easy", n) for n in range(100))
        if t.gold_calls[-1].arguments["summary"] == "refund limit reached"
    )
    refusal = gold_text("You had three refunds, so I cannot refund this.")
    assert play(limit, Script(*turns_before(limit, limit.gold_turns[-2]), refusal))[0].reward == 0.0
    assert play(limit, Script(*limit.gold_turns))[0].reward == 1.0


def test_tools_refuse_calls_after_transfer() -> None:
    desk = Desk()
    desk.do("transfer_to_human", summary="an accident")
    assert "has been transferred" in desk.refusal("get_order", order_id="D1")
    assert "has been transferred" in desk.refusal("cancel_order", order_id="D1")


@pytest.mark.parametrize("family", ["cancel", "missing", "place", "paid"])
def test_unnecessary_transfer_fails_state_match(family: str) -> None:
    task = task_of_family(family, granted=False)
    *earlier, last = task.gold
    assert (
        play(task, Script(*earlier, gold_call("transfer_to_human", summary="no"), last))[0].parts["state_match"] == 0.0
    )


def test_partially_completed_task_earns_no_reward() -> None:
    task = task_with_two_changes()
    first, _ = write_turns(task)
    assert play(task, Script(*turns_before(task, first), first, gold_text("Done.")))[0].reward == 0.0
