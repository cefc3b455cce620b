"""Pictures of a profile: SVG and PNG from one scene, and a chart for the terminal."""

from __future__ import annotations

from lacuna.contract.profiles import Profile
from lacuna.pictures.profile import scene
from lacuna.pictures.scene import svg

__all__ = ["profile_png", "profile_svg"]


def profile_svg(profile: Profile) -> bytes:
    """The profile as a self-contained SVG document."""
    return svg(scene(profile))


def profile_png(profile: Profile) -> bytes:
    """The profile as PNG, drawn from the same scene."""
    from lacuna.pictures.scene import png

    return png(scene(profile))
