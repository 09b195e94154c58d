"""Names of restaurants, and the dishes that their menus may have."""

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from understudy.domains.authoring.people import split_words
from understudy.domains.doordash.state import Cuisine

AREAS = ("Harbor", "Midtown", "Northgate", "Riverside", "Westside")

RESTAURANT_NAMES: Mapping[Cuisine, tuple[str, ...]] = {
    "burgers": split_words(
        "Big_Bun Burger_Barn Char_Grill Double_Stack Grill_Works Patty_Shack Prime_Burger Smokehouse The_Counter",
        "Union_Burger",
    ),
    "indian": split_words(
        "Bombay_Palace Curry_Leaf Delhi_House Ganges Indigo_Spice Masala_Corner Namaste Punjab_Grill Raj_Mahal",
        "Taj_Garden",
    ),
    "pizza": split_words(
        "Bella_Napoli Casa_Roma Da_Marco Forno_Vero Luna_Rossa Pizza_Corner Stone_Oven Tre_Amici Vesuvio Via_Verde",
    ),
    "thai": split_words(
        "Bangkok_Garden Basil_House Golden_Elephant Jade_Lotus Lemongrass Mango_Tree Orchid_Room Siam_Corner Tamarind",
        "Tuk_Tuk",
    ),
}


class DishTemplate(NamedTuple):
    """A dish that restaurants of a cuisine may offer."""

    name: str
    price: int
    """The approximate price."""
    allergens: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    vegan: bool = False
    alcohol: bool = False


OPTION_PRICES: Mapping[str, Decimal] = {
    "large": Decimal("3.00"),
    "extra cheese": Decimal("1.50"),
    "extra rice": Decimal("2.00"),
    "extra sauce": Decimal("0.80"),
    "bacon": Decimal("2.20"),
    "tofu": Decimal("2.50"),
    "spicy": Decimal("0.00"),
}
"""Sizes and extras, with their extra prices."""

DISHES: Mapping[Cuisine, tuple[DishTemplate, ...]] = {
    "burgers": (
        DishTemplate("Cheeseburger", 9, ("gluten", "milk"), ("large", "bacon")),
        DishTemplate("Chicken Burger", 10, ("gluten", "egg"), ("extra cheese",)),
        DishTemplate("Veggie Burger", 9, ("gluten", "soy"), ("extra sauce",), vegan=True),
        DishTemplate("Fish Burger", 10, ("gluten", "fish"), ("extra sauce",)),
        DishTemplate("Fries", 4, ("celery",), ("large", "extra sauce"), vegan=True),
        DishTemplate("Onion Rings", 5, ("gluten",), (), vegan=True),
        DishTemplate("Coleslaw", 4, ("egg", "mustard")),
        DishTemplate("Milkshake", 5, ("milk",), ("large",)),
    ),
    "indian": (
        DishTemplate("Chicken Tikka", 12, ("milk",), ("extra rice", "spicy")),
        DishTemplate("Lamb Curry", 14, ("mustard",), ("extra rice", "spicy")),
        DishTemplate("Chana Masala", 10, ("mustard",), ("extra rice", "spicy"), vegan=True),
        DishTemplate("Palak Paneer", 11, ("milk",), ("extra rice",)),
        DishTemplate("Dal", 9, ("celery",), ("extra rice",), vegan=True),
        DishTemplate("Garlic Naan", 4, ("gluten", "milk")),
        DishTemplate("Samosas", 6, ("gluten",), ("extra sauce",), vegan=True),
        DishTemplate("Mango Lassi", 4, ("milk",), ("large",)),
    ),
    "pizza": (
        DishTemplate("Margherita", 10, ("gluten", "milk"), ("large", "extra cheese")),
        DishTemplate("Pepperoni Pizza", 12, ("gluten", "milk"), ("large", "extra cheese")),
        DishTemplate("Marinara", 9, ("gluten",), ("large",), vegan=True),
        DishTemplate("Tuna Pizza", 13, ("gluten", "milk", "fish"), ("large",)),
        DishTemplate("Lasagne", 12, ("gluten", "milk", "egg")),
        DishTemplate("Minestrone", 7, ("celery",), (), vegan=True),
        DishTemplate("Garlic Bread", 5, ("gluten",), ("extra cheese",), vegan=True),
        DishTemplate("Tiramisu", 6, ("gluten", "milk", "egg")),
    ),
    "thai": (
        DishTemplate("Pad Thai", 12, ("peanuts", "egg"), ("large", "tofu", "spicy")),
        DishTemplate("Green Curry", 13, ("fish",), ("extra rice", "spicy")),
        DishTemplate("Vegetable Curry", 11, ("soy",), ("extra rice", "tofu"), vegan=True),
        DishTemplate("Satay Skewers", 8, ("peanuts", "soy")),
        DishTemplate("Spring Rolls", 6, ("gluten",), ("extra sauce",), vegan=True),
        DishTemplate("Tom Yum Soup", 8, ("shellfish", "fish"), ("spicy",)),
        DishTemplate("Fried Rice", 10, ("egg", "soy"), ("large", "tofu")),
        DishTemplate("Papaya Salad", 9, ("peanuts", "fish"), ("spicy",)),
    ),
}
DRINKS = (DishTemplate("Lemonade", 3), DishTemplate("Iced Tea", 3), DishTemplate("Cola", 3))
ALCOHOL = (
    DishTemplate("Lager", 5, ("gluten",), alcohol=True),
    DishTemplate("Red Wine", 7, ("sulphites",), alcohol=True),
)
