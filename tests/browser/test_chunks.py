"""Pasted chunks: read as the command line reads them, or refused by line."""

from __future__ import annotations

from typing import Any

import pytest

from lacuna.client.chunks import parse_chunks
from service.local.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Page, expect

READ = [
    "a, 10, 0.9\nb, 20, 0.5",
    "10 0.9\n\n20 0.5",
    "a passage 10 0.9",
    "a\t10\t.9\r\nb\t20\t5e-1",
    "a;10;0.9\n;20;0.5",
    'relevance;id;tokens\n0.9;"a;b";10\n0.5;;20.0',
    '"Smith, ""J""", 10, 0.9\nplain, 20, -1',
    "ID,Tokens,Relevance,Pinned\na,10,0.9,first\nb,20,0.5,\nc,30,0.1,0",
    "relevance,text\n0.9,some words",
    "a;10;0,9\nb;20;0.5",
    "a\t10\t0,9\nb\t20\t,5",
    '[{"id": "a", "tokens": 10, "relevance": 0.9, "line": 3}, {"id": "b"}]',
    '[\n  {"id": "a",\n "text": "x, y", "relevance": 0.9}\n]\n',
    '{"id": "a", "tokens": 10, "relevance": 0.9}',
    '{"id": "a", "tokens": 10, "relevance": 0.9}\n\n{"id": "b", "tokens": 1, "relevance": 1}',
    '{"chunks": [{"id": "a", "tokens": 10, "relevance": 0.9}]}',
]
REFUSED = {
    "a,10,0,9": "line 1: 4 cells",
    "a, 10, 0.9\nb, 10, 0,9": "line 2: 4 cells",
    "10,0,9": 'line 1: tokens: "0" is not a whole number from 1',
    "a;1,000;0,9": 'line 1: tokens: "1,000" is not',
    "a 10 0,9": 'line 1: tokens: "a 10 0" is not',
    "a;10;1.234,5": 'line 1: relevance: "1.234,5" is not a number',
    "a;10;0,9;x": "line 1: 4 cells",
    "a, 10,": 'line 1: relevance: "" is not a number',
    "a, 0x10, 0.9": "line 1: tokens",
    "a, 10, Infinity": "line 1: relevance",
    "120 0.5\nhalf a line": 'line 2: tokens: "a"',
    "120\t0.5\n80;0.9": "line 2: expected a name",
    "": "Chunks: none given",
    "  \n\n": "Chunks: none given",
    "id, tokens, relevance": "none given below the heading",
    "id, tokens, relevance\na, 10": "line 2: 2 cells under 3 columns",
    "id, size, relevance\na, 10, 0.9": 'unknown column "size"; a heading names the columns id, ',
    "chunk_id,score,length\na,0.9,10": 'line 1: unknown column "chunk_id"; a heading names',
    '[{"id": "a", "tokens": 10, "relevance": 0.9': "Chunks: not JSON: ",
    '{"id": "a", "relevance": 1}\n{"id": "b"; "relevance": 1}': "Chunks: line 2: not JSON: ",
    "[1]": "number 1: expected {",
    "[]": "Chunks: none given",
    '{"model": "gpt2", "chunks": []}': "paste the list of chunks alone",
    '{"relevance": 1, "tokens": 1, "id": "a"}\n\n{"tokens": -1}': "line 3: tokens: Input",
    '[{"id": "a", "tokens": 10, "score": 0.9}]': "did you mean `relevance`?",
    'a, 10, 0.9\n"b" c, 10, 0.9': "line 2: something follows a closing quotation mark",
}


@pytest.fixture(scope="module")
def reader(stack: Stack, chromium: Any) -> Any:
    """The page's own reading of a text: chunks, or the message."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(stack.url)
    script = (
        "async text => { const { parseChunks } = await import('./assets/chunks.js');"
        "try { return parseChunks(text).chunks; }"
        "catch (error) { return error.errors[0].message; } }"
    )
    yield lambda text: page.evaluate(script, text)
    context.close()


@pytest.mark.parametrize("text", READ)
def test_the_page_reads_what_the_command_line_reads(reader: Any, text: str) -> None:
    assert reader(text) == parse_chunks(text, "file").fields["chunks"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_meant_is_refused_by_line(
    stack: Stack, filled: str, open_page: Any, text: str
) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(6)
    page.locator("#chunks").fill(text)
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-error")).to_contain_text(REFUSED[text])
    expect(page.locator("#chunks")).to_be_focused()
    expect(page.locator("#chunks")).to_have_attribute("aria-invalid", "true")
    # The former answer does not stand under the refusal.
    expect(page.locator("#place-result")).to_be_hidden()
    expect(page.locator("#place-lead")).to_be_empty()


def test_the_services_own_refusal_names_the_line(stack: Stack, filled: str, open_page: Any) -> None:
    page: Page = open_page(f"{stack.url}/#/place?profile={filled}").page
    page.locator("#chunks").fill("a, 10, 0.9\n\nb, 2000000, 0.5")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-error")).to_contain_text("Chunks: line 3: ")
    page.locator("#chunks").fill("a, 10, 0.9\n\nb, 20, 0.5")
    page.get_by_role("button", name="Place", exact=True).click()
    expect(page.locator("#place-table tbody tr")).to_have_count(2)
    expect(page.locator("#place-error")).to_be_hidden()
    expect(page.locator("#chunks")).not_to_have_attribute("aria-invalid", "true")


def test_text_from_outside_is_never_markup(stack: Stack, filled: str, open_page: Any) -> None:
    watched = open_page(f"{stack.url}/#/place?profile={filled}")
    page: Page = watched.page
    page.locator("#chunks").fill("<img/src=x/onerror=alert(1)>, 50, 0.5")
    page.get_by_role("button", name="Place", exact=True).click()
    cell = page.locator("#place-table tbody td:nth-child(2)")
    expect(cell).to_have_text("<img/src=x/onerror=alert(1)>")
    assert page.locator("#place-result img").count() == 0
    assert watched.complaints == []
