"""What restaurants are called, and what they may have on their menus."""

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from understudy.domains.doordash.state import Cuisine
from understudy.domains.people import words

AREAS = ("Harbor", "Midtown", "Northgate", "Riverside", "Westside")

NAMES: Mapping[Cuisine, tuple[str, ...]] = {
    "burgers": words(
        "Big_Bun Burger_Barn Char_Grill Double_Stack Grill_Works Patty_Shack Prime_Burger Smokehouse The_Counter",
        "Union_Burger",
    ),
    "indian": words(
        "Bombay_Palace Curry_Leaf Delhi_House Ganges Indigo_Spice Masala_Corner Namaste Punjab_Grill Raj_Mahal",
        "Taj_Garden",
    ),
    "pizza": words(
        "Bella_Napoli Casa_Roma Da_Marco Forno_Vero Luna_Rossa Pizza_Corner Stone_Oven Tre_Amici Vesuvio Via_Verde",
    ),
    "thai": words(
        "Bangkok_Garden Basil_House Golden_Elephant Jade_Lotus Lemongrass Mango_Tree Orchid_Room Siam_Corner Tamarind",
        "Tuk_Tuk",
    ),
}


class Recipe(NamedTuple):
    """A dish that restaurants of a cuisine may offer."""

    name: str
    price: int
    """About what it costs."""
    allergens: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    vegan: bool = False
    alcohol: bool = False


OPTIONS: Mapping[str, Decimal] = {
    "large": Decimal("3.00"),
    "extra cheese": Decimal("1.50"),
    "extra rice": Decimal("2.00"),
    "extra sauce": Decimal("0.80"),
    "bacon": Decimal("2.20"),
    "tofu": Decimal("2.50"),
    "spicy": Decimal("0.00"),
}
"""Sizes and extras, and what they add."""

DISHES: Mapping[Cuisine, tuple[Recipe, ...]] = {
    "burgers": (
        Recipe("Cheeseburger", 9, ("gluten", "milk"), ("large", "bacon")),
        Recipe("Chicken Burger", 10, ("gluten", "egg"), ("extra cheese",)),
        Recipe("Veggie Burger", 9, ("gluten", "soy"), ("extra sauce",), vegan=True),
        Recipe("Fish Burger", 10, ("gluten", "fish"), ("extra sauce",)),
        Recipe("Fries", 4, ("celery",), ("large", "extra sauce"), vegan=True),
        Recipe("Onion Rings", 5, ("gluten",), (), vegan=True),
        Recipe("Coleslaw", 4, ("egg", "mustard")),
        Recipe("Milkshake", 5, ("milk",), ("large",)),
    ),
    "indian": (
        Recipe("Chicken Tikka", 12, ("milk",), ("extra rice", "spicy")),
        Recipe("Lamb Curry", 14, ("mustard",), ("extra rice", "spicy")),
        Recipe("Chana Masala", 10, ("mustard",), ("extra rice", "spicy"), vegan=True),
        Recipe("Palak Paneer", 11, ("milk",), ("extra rice",)),
        Recipe("Dal", 9, ("celery",), ("extra rice",), vegan=True),
        Recipe("Garlic Naan", 4, ("gluten", "milk")),
        Recipe("Samosas", 6, ("gluten",), ("extra sauce",), vegan=True),
        Recipe("Mango Lassi", 4, ("milk",), ("large",)),
    ),
    "pizza": (
        Recipe("Margherita", 10, ("gluten", "milk"), ("large", "extra cheese")),
        Recipe("Pepperoni Pizza", 12, ("gluten", "milk"), ("large", "extra cheese")),
        Recipe("Marinara", 9, ("gluten",), ("large",), vegan=True),
        Recipe("Tuna Pizza", 13, ("gluten", "milk", "fish"), ("large",)),
        Recipe("Lasagne", 12, ("gluten", "milk", "egg")),
        Recipe("Minestrone", 7, ("celery",), (), vegan=True),
        Recipe("Garlic Bread", 5, ("gluten",), ("extra cheese",), vegan=True),
        Recipe("Tiramisu", 6, ("gluten", "milk", "egg")),
    ),
    "thai": (
        Recipe("Pad Thai", 12, ("peanuts", "egg"), ("large", "tofu", "spicy")),
        Recipe("Green Curry", 13, ("fish",), ("extra rice", "spicy")),
        Recipe("Vegetable Curry", 11, ("soy",), ("extra rice", "tofu"), vegan=True),
        Recipe("Satay Skewers", 8, ("peanuts", "soy")),
        Recipe("Spring Rolls", 6, ("gluten",), ("extra sauce",), vegan=True),
        Recipe("Tom Yum Soup", 8, ("shellfish", "fish"), ("spicy",)),
        Recipe("Fried Rice", 10, ("egg", "soy"), ("large", "tofu")),
        Recipe("Papaya Salad", 9, ("peanuts", "fish"), ("spicy",)),
    ),
}
DRINKS = (Recipe("Lemonade", 3), Recipe("Iced Tea", 3), Recipe("Cola", 3))
ALCOHOL = (
    Recipe("Lager", 5, ("gluten",), alcohol=True),
    Recipe("Red Wine", 7, ("sulphites",), alcohol=True),
)
