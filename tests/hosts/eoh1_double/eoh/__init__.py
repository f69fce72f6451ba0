"""A double of EoH 0.1: the module paths, names and signatures that the adapter meets, around a loop of a few lines.

It also has the weak points that the adapter guards against: a probe in the constructor of the model, a wrong attribute
behind operator weights, `input()` in debug mode, and a loop that trips over a population of nobody.
"""
