"""Served models: what a model behind an HTTP endpoint can tell, without its weights or torch.

Addresses come from the operator's settings (`settings`), never from a request. `client` makes the
calls, `budget` bounds them, `ledger` keeps every answer that was paid for. `dialects` holds the
ways of reading a probability, `checks` decides whether one may be believed, and `ladder` tries
them all and picks the best.
`measurement` puts them together; `python -m workers.endpoints` runs it.
"""
