"""`python -m service.gateway.write_openapi`: store the OpenAPI document in openapi/openapi.json."""

from __future__ import annotations

from service.gateway.app import create_app
from service.gateway.openapi import FOLDER, text
from service.settings import Settings

if __name__ == "__main__":
    FOLDER.joinpath("openapi.json").write_text(text(create_app(Settings())))
