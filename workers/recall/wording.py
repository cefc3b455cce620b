"""The words of the probes: topics, phrasings and keys. Data only.

Answers are words that are one token in most vocabularies: then the first token's probability is
the answer's. Each topic and each phrasing changes the level of recall, and at the ends of a prompt
its shape too, so every probe has at least six of each.
"""

from __future__ import annotations

# ruff: noqa: SIM905  (lists of words are read and changed most easily as text)
from typing import NamedTuple

QUALITIES = tuple(
    "copper silver wooden marble velvet amber crimson hollow frozen painted ancient narrow golden "
    "broken silent striped".split()
)
THINGS = tuple(
    "lantern harbour cabinet bridge violin garden tower anchor mirror ladder station orchard "
    "compass library kettle chimney".split()
)


class Phrasing(NamedTuple):
    """How a fact is stated, asked for, and how the reply begins."""

    fact: str
    question: str
    lead: str


FACT_TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "city": (
        "home city",
        tuple("London Paris Berlin Madrid Rome Tokyo Moscow Chicago Boston Sydney".split()),
    ),
    "owner": (
        "owner",
        tuple("John Mary David Sarah Robert Linda Thomas Peter Emma George".split()),
    ),
    "month": (
        "opening month",
        tuple("January February March April June July August October November December".split()),
    ),
    "animal": (
        "guardian animal",
        tuple("horse tiger rabbit eagle snake bear wolf lion dog cat".split()),
    ),
    "fruit": (
        "favourite fruit",
        tuple("apple banana lemon orange cherry grape peach mango plum melon".split()),
    ),
    "colour": (
        "secret colour",
        tuple("red blue green yellow black white purple orange pink brown".split()),
    ),
    "drink": (
        "usual drink",
        tuple("tea coffee wine beer milk water juice soda cider rum".split()),
    ),
    "material": (
        "hidden material",
        tuple("wood glass stone iron steel paper leather cotton plastic clay".split()),
    ),
}
"""Topic: (attribute, its possible values)."""

FACT_PHRASINGS: dict[str, Phrasing] = {
    "of": Phrasing(
        "The {a} of the {k} is {v}.",
        "What is the {a} of the {k}?",
        "The {a} of the {k} is",
    ),
    "note": Phrasing(
        "Note about the {k}: its {a} is {v}.",
        "According to the note, what is the {a} of the {k}?",
        "Its {a} is",
    ),
    "has": Phrasing(
        "The {k} has {v} as its {a}.",
        "Which {a} does the {k} have?",
        "The {a} of the {k} is",
    ),
    "record": Phrasing(
        "For the {k}, the {a} was recorded as {v}.",
        "What was recorded as the {a} of the {k}?",
        "It was recorded as",
    ),
    "letter": Phrasing(
        "A letter says that the {a} of the {k} is {v}.",
        "What is the {a} of the {k}, as the letter says?",
        "The letter says that it is",
    ),
    "agreed": Phrasing(
        "It was agreed that {v} is the {a} of the {k}.",
        "What was agreed to be the {a} of the {k}?",
        "The {a} of the {k} is",
    ),
    "told": Phrasing(
        "Visitors who ask for the {a} of the {k} are told: {v}.",
        "What are visitors told who ask for the {a} of the {k}?",
        "They are told:",
    ),
    "label": Phrasing(
        "A label on the {k} names {v} as the {a}.",
        "Which {a} is named on the label of the {k}?",
        "The label names",
    ),
}

NAMES = tuple("John Mary David Sarah Robert Linda Thomas Peter Emma George James Michael".split())
"""Answers of the probe `paraphrase`."""

PARAPHRASE_TOPICS: dict[str, tuple[tuple[str, str], ...]] = {
    "home": (
        ("moved to Paris", "resides in the capital of France"),
        ("moved to Rome", "resides in the capital of Italy"),
        ("moved to Madrid", "resides in the capital of Spain"),
        ("moved to Tokyo", "resides in the capital of Japan"),
        ("moved to Berlin", "resides in the capital of Germany"),
        ("moved to London", "resides in the capital of England"),
        ("moved to Moscow", "resides in the capital of Russia"),
        ("moved to Cairo", "resides in the capital of Egypt"),
        ("moved to Athens", "resides in the capital of Greece"),
        ("moved to Dublin", "resides in the capital of Ireland"),
    ),
    "pet": (
        ("fed a puppy", "looked after a young dog"),
        ("fed a kitten", "looked after a young cat"),
        ("fed a lamb", "looked after a young sheep"),
        ("fed a foal", "looked after a young horse"),
        ("fed a calf", "looked after a young cow"),
        ("fed a cub", "looked after a young bear"),
        ("fed a chick", "looked after a young hen"),
        ("fed a tadpole", "looked after a young frog"),
        ("fed a fawn", "looked after a young deer"),
        ("fed a caterpillar", "looked after a young butterfly"),
    ),
    "job": (
        ("became a dentist", "repairs teeth"),
        ("became a baker", "makes bread"),
        ("became a pilot", "flies aeroplanes"),
        ("became a farmer", "grows crops"),
        ("became a tailor", "sews clothes"),
        ("became a butcher", "sells meat"),
        ("became a plumber", "mends water pipes"),
        ("became a teacher", "works in a school"),
        ("became a barber", "cuts hair"),
        ("became a nurse", "cares for patients"),
    ),
    "colour": (
        ("wore crimson", "was dressed in red"),
        ("wore navy", "was dressed in blue"),
        ("wore emerald", "was dressed in green"),
        ("wore ivory", "was dressed in white"),
        ("wore ebony", "was dressed in black"),
        ("wore lilac", "was dressed in purple"),
        ("wore amber", "was dressed in orange"),
        ("wore rose", "was dressed in pink"),
        ("wore chocolate", "was dressed in brown"),
        ("wore lemon", "was dressed in yellow"),
    ),
    "food": (
        ("ordered cheddar", "ate cheese"),
        ("ordered salmon", "ate fish"),
        ("ordered spaghetti", "ate pasta"),
        ("ordered merlot", "had wine"),
        ("ordered espresso", "had coffee"),
        ("ordered steak", "ate meat from cattle"),
        ("ordered broccoli", "ate a green vegetable"),
        ("ordered mango", "ate tropical fruit"),
        ("ordered lager", "had beer"),
        ("ordered baguettes", "ate French bread"),
    ),
    "time": (
        ("arrived at noon", "came in the middle of the day"),
        ("arrived at dawn", "came as the sun rose"),
        ("arrived at dusk", "came as the sun set"),
        ("arrived at midnight", "came in the middle of the night"),
        ("arrived on Christmas Eve", "came late in December"),
        ("arrived on Halloween", "came at the end of October"),
        ("arrived for Easter", "came in spring"),
        ("arrived on Valentine's Day", "came in the middle of February"),
        ("arrived on Saturday", "came at the weekend"),
        ("arrived on New Year's Day", "came on the first of January"),
    ),
    "transport": (
        ("took a bicycle", "rode on two wheels"),
        ("took a ferry", "crossed the water"),
        ("took an aeroplane", "flew through the air"),
        ("took a train", "went by rail"),
        ("took a horse", "rode on an animal"),
        ("took a taxi", "went in a hired car"),
        ("took a tractor", "drove a farm machine"),
        ("took a sledge", "slid over the snow"),
        ("took a lift", "went up without the stairs"),
        ("took an ambulance", "was brought to hospital"),
    ),
}
"""Topic: (what the fact says, what the question says), without a content word in common."""

PARAPHRASE_PHRASINGS: dict[str, Phrasing] = {
    "bare": Phrasing("{v} {f}.", "Who {q}?", "The answer is"),
    "remember": Phrasing(
        "Many people remember that {v} {f}.", "Of whom is it true: {q}?", "It is true of"
    ),
    "neighbours": Phrasing(
        "According to the neighbours, {v} {f}.", "Which person {q}?", "The person is"
    ),
    "year": Phrasing("Last year, {v} {f}.", "Can you say who {q}?", "I say it was"),
    "report": Phrasing("As the report shows, {v} {f}.", "Tell me who {q}.", "That was"),
    "friend": Phrasing(
        "Our old friend {v} {f}.", "What is the name of the one who {q}?", "The name is"
    ),
}


class Records(NamedTuple):
    """How key-value records are written and asked for; `{k}` is the key, `{v}` the value."""

    opening: str
    record: str
    glue: str
    closing: str
    question: str
    lead: str
    space: str  # between the lead and the value


RECORD_FORMATS: dict[str, Records] = {
    "json": Records(
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        "JSON data:\n{",
        '"{k}": "{v}"',
        ",\n ",
        "}",
        'Key: "{k}"',
        'Corresponding value: "',
        "",
    ),
    "lines": Records(
        "Below are keys and their values.\n\n",
        "{k}: {v}",
        "\n",
        "",
        "What is the value of the key {k}?",
        "{k}:",
        " ",
    ),
    "arrows": Records(
        "Each line below maps a key to a value.\n\n",
        "{k} -> {v}",
        "\n",
        "",
        "To which value is {k} mapped?",
        "{k} ->",
        " ",
    ),
    "table": Records(
        "| Key | Value |\n|---|---|\n",
        "| {k} | {v} |",
        "\n",
        "",
        "Which value stands in the row of the key {k}?",
        "| {k} |",
        " ",
    ),
    "assignments": Records(
        "These are the settings.\n\n",
        "{k} = {v}",
        "\n",
        "",
        "What is {k} set to?",
        "{k} =",
        " ",
    ),
    "sentences": Records(
        "",
        "The box {k} holds the word {v}.",
        "\n",
        "",
        "Which word does the box {k} hold?",
        "The box {k} holds the word",
        " ",
    ),
    "xml": Records(
        "<records>\n",
        '<record key="{k}">{v}</record>',
        "\n",
        "\n</records>",
        "Repeat the record with the key {k}.",
        '<record key="{k}">',
        "",
    ),
}

KEY_KINDS = ("uuid", "hex", "number", "serial", "words", "date")

DOCUMENT_INSTRUCTIONS: dict[str, str] = {
    "liu": "Write a high-quality answer for the given question using only the provided search "
    "results (some of which might be irrelevant).",
    "short": "Answer the question with the help of the documents. Most of them do not matter.",
    "find": "One of these documents holds the answer to the question. Find it and answer.",
    "only": "Use nothing but the documents below to answer the question in a few words.",
    "assistant": "You help people search. Read the results and answer their question briefly.",
    "quote": "Answer the question with words that stand in one of the documents.",
}
