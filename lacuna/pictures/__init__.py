"""Pictures of a profile: SVG, PDF and PNG from one scene, and a chart for the terminal.

Only the PNG need Pillow, so only they import Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from lacuna.contract.profiles import Profile
from lacuna.pictures import recall
from lacuna.pictures.pdf import pdf
from lacuna.pictures.profile import Across, Upwards, scene
from lacuna.pictures.scene import svg

__all__ = [
    "View",
    "profile_pdf",
    "profile_png",
    "profile_svg",
    "recall_pdf",
    "recall_png",
    "recall_svg",
]


class View(TypedDict, total=False):
    """Which curves and axes a picture shows: the arguments of `pictures.profile.scene`."""

    curves: Sequence[str] | None
    x: Across
    y: Upwards


def profile_svg(profile: Profile, **view: Unpack[View]) -> bytes:
    """The profile as a self-contained SVG document, UTF-8.

    Args:
        view: which curves and axes: the arguments of `pictures.profile.scene`.
    """
    return svg(scene(profile, **view))


def profile_pdf(profile: Profile, **view: Unpack[View]) -> bytes:
    """The same as PDF, for papers: vectors and text, light."""
    return pdf(scene(profile, **view))


def profile_png(profile: Profile, **view: Unpack[View]) -> bytes:
    """The same as PNG, at twice the size, light.

    Raises:
        ImportError: Pillow is missing; install `lacuna-client[png]`.
    """
    from lacuna.pictures.png import png

    return png(scene(profile, **view))


def recall_svg(profile: Profile) -> bytes:
    """The profile's recall curves as a self-contained SVG document, UTF-8.

    Raises:
        InvalidRequest: recall was not measured.
    """
    return svg(recall.scene(profile))


def recall_pdf(profile: Profile) -> bytes:
    """The same as PDF; errors as `recall_svg`."""
    return pdf(recall.scene(profile))


def recall_png(profile: Profile) -> bytes:
    """The same as PNG; errors as `profile_png` and `recall_svg`."""
    from lacuna.pictures.png import png

    return png(recall.scene(profile))
