"""Pictures of a profile: SVG and PNG from one scene, and a chart for the terminal.

Only the PNG need Pillow, so only they import Pillow.
"""

from __future__ import annotations

from lacuna.contract.profiles import Profile
from lacuna.pictures import recall
from lacuna.pictures.profile import scene
from lacuna.pictures.scene import svg

__all__ = ["profile_png", "profile_svg", "recall_png", "recall_svg"]


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


def recall_svg(profile: Profile) -> bytes:
    """The profile's recall curves as a self-contained SVG document, UTF-8.

    Raises:
        InvalidRequest: recall was not measured.
    """
    return svg(recall.scene(profile))


def recall_png(profile: Profile) -> bytes:
    """The same as PNG; errors as `profile_png` and `recall_svg`."""
    from lacuna.pictures.png import png

    return png(recall.scene(profile))
