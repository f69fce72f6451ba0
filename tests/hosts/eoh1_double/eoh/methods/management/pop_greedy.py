"""The best with distinct objectives."""


def population_management(pop, size):
    first = {}
    for one in pop:
        if one["objective"] is not None:
            first.setdefault(one["objective"], one)
    return sorted(first.values(), key=lambda one: one["objective"])[:size]
