"""What the notebooks share: style, statistics over seeds, drawing, bundles, the gallery."""
