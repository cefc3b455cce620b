"""Pictures of a profile: SVG and PNG from one scene, and a chart for the terminal.

Only `profile_png` needs Pillow, so only it imports Pillow.
"""

from __future__ import annotations

from lacuna.contract.profiles import Profile
from lacuna.pictures.profile import scene
from lacuna.pictures.scene import svg

__all__ = ["profile_png", "profile_svg"]


def profile_svg(profile: Profile) -> bytes:
    """The profile as a self-contained SVG document, UTF-8."""
    return svg(scene(profile))


def profile_png(profile: Profile) -> bytes:
    """The profile as PNG, the same picture at twice the size, light.

    Raises:
        ImportError: Pillow is missing; install `lacuna-client[png]`.
    """
    from lacuna.pictures.png import png

    return png(scene(profile))
