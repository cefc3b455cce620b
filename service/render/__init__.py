"""Pictures of a profile: SVG and PNG from one scene, and a chart for the terminal."""

from __future__ import annotations

from service.contract.profiles import Profile
from service.render.profile import scene
from service.render.svg import svg

__all__ = ["profile_png", "profile_svg"]


def profile_svg(profile: Profile) -> bytes:
    """The profile as a self-contained SVG document."""
    return svg(scene(profile))


def profile_png(profile: Profile) -> bytes:
    """The profile as PNG, drawn from the same scene."""
    from service.render.png import png  # noqa: PLC0415 - Pillow is slow to import, seldom needed

    return png(scene(profile))
