"""How well a colour is read on another: the contrast ratio of WCAG 2."""


def contrast(front, behind):
    """From 1 to 21, of two of Textual's colours."""
    light, dark = sorted((_luminance(front), _luminance(behind)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (part / 255 for part in colour.rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
