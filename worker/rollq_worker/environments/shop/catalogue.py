"""What the shop sells.

A product comes in variants. A customer buys a variant, which has an item id. Amounts of money are whole cents; where
policy or customer read them they are text with two decimals (`129.45`).
"""

from dataclasses import dataclass
from functools import cache
from itertools import product as combinations
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant of a product, which a customer can buy."""

    item_id: str
    product_id: str
    name: str
    options: tuple[tuple[str, str], ...]
    price: int
    """Price in cents."""
    in_stock: bool

    @property
    def described(self) -> str:
        """Text such as `Desk Lamp (colour black, base clamp)`."""
        return f"{self.name} ({', '.join(f'{option} {value}' for option, value in self.options)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product. It has at least four variants, of which at least three are in stock."""

    product_id: str
    name: str
    category: str
    final_sale: bool
    """Whether the policy forbids to return or exchange it."""
    variants: tuple[Variant, ...]


def money(cents: int) -> str:
    """Cents as text with two decimals, such as `129.45`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


_RANGE: tuple[tuple[str, str, bool, int, dict[str, tuple[str, ...]]], ...] = (
    ("Trail Backpack", "outdoor", False, 74, {"colour": ("green", "grey", "orange"), "volume": ("20 l", "30 l")}),
    ("Camping Stove", "outdoor", False, 52, {"fuel": ("gas", "spirit"), "burners": ("one", "two")}),
    ("Sleeping Bag", "outdoor", False, 118, {"season": ("summer", "winter"), "side": ("left zip", "right zip")}),
    ("Rain Jacket", "clothing", False, 96, {"colour": ("blue", "red"), "size": ("S", "M", "L")}),
    ("Wool Sweater", "clothing", False, 83, {"colour": ("navy", "cream"), "size": ("S", "M", "L")}),
    ("Running Shoes", "clothing", False, 109, {"colour": ("black", "white"), "size": ("8", "9", "10")}),
    ("Desk Lamp", "home", False, 44, {"colour": ("black", "brass"), "base": ("clamp", "stand")}),
    ("Bookshelf", "home", False, 137, {"wood": ("oak", "walnut"), "shelves": ("three", "five")}),
    ("Wall Clock", "home", False, 39, {"face": ("white", "black"), "diameter": ("25 cm", "35 cm")}),
    ("Espresso Maker", "kitchen", False, 148, {"colour": ("steel", "red"), "pressure": ("9 bar", "15 bar")}),
    ("Chef Knife", "kitchen", False, 67, {"blade": ("15 cm", "20 cm"), "handle": ("wood", "resin")}),
    ("Cast Iron Pan", "kitchen", False, 58, {"diameter": ("24 cm", "28 cm"), "finish": ("raw", "enamel")}),
    ("Water Kettle", "kitchen", False, 41, {"colour": ("steel", "white"), "volume": ("1 l", "1.7 l")}),
    ("Wireless Headphones", "electronics", False, 163, {"colour": ("black", "silver"), "fit": ("on ear", "over ear")}),
    ("Mechanical Keyboard", "electronics", False, 112, {"keys": ("linear", "tactile"), "layout": ("full", "small")}),
    ("Portable Speaker", "electronics", False, 88, {"colour": ("teal", "black"), "battery": ("10 h", "20 h")}),
    ("E-Reader", "electronics", False, 129, {"storage": ("8 GB", "32 GB"), "colour": ("black", "white")}),
    ("Chess Set", "games", False, 61, {"wood": ("maple", "rosewood"), "board": ("folding", "solid")}),
    ("Jigsaw Puzzle", "games", False, 27, {"picture": ("harbour", "meadow"), "pieces": ("500", "1000")}),
    ("Tennis Racket", "sports", False, 121, {"grip": ("2", "3"), "weight": ("280 g", "300 g")}),
    ("Yoga Mat", "sports", False, 36, {"colour": ("plum", "sand"), "thickness": ("4 mm", "6 mm")}),
    ("Outlet Scarf", "clothing", True, 19, {"colour": ("red", "grey"), "length": ("short", "long")}),
    ("Outlet Mug Set", "kitchen", True, 23, {"colour": ("white", "blue"), "mugs": ("two", "four")}),
    ("Outlet Phone Case", "electronics", True, 17, {"colour": ("clear", "black"), "model": ("mini", "max")}),
)


@cache
def catalogue() -> tuple[Product, ...]:
    """The same products in every process."""
    return tuple(_product(index, *row) for index, row in enumerate(_RANGE))


def _product(
    index: int, name: str, category: str, final_sale: bool, dollars: int, options: dict[str, tuple[str, ...]]
) -> Product:
    random = Random(f"shop product {index}")
    product_id = f"P-{index * 7 % 89 + 10}"
    choices = list(combinations(*options.values()))
    sold_out = random.randrange(len(choices) * 2)  # about half of the products have one variant that is sold out
    variants = tuple(
        Variant(
            item_id=f"{product_id}-{place + 1}",
            product_id=product_id,
            name=name,
            options=tuple(zip(options, choice, strict=True)),
            # No two variants of a product cost the same.
            price=dollars * 100 + place * 100 * max(2, dollars // 12) + random.randrange(100),
            in_stock=place != sold_out,
        )
        for place, choice in enumerate(choices)
    )
    return Product(product_id=product_id, name=name, category=category, final_sale=final_sale, variants=variants)
