def priority(item, gap):
    """Which open bin takes the item: the one with the largest value. `gap` is what would be left free in the bin."""
    return gap
