"""Going on from a log folder."""

from __future__ import annotations

import json
import os

from ...base import TextFunctionProgramConverter
from .population import Population


def _get_all_samples_and_scores(path, get_algorithm=True):
    with open(os.path.join(path, "samples", "samples_1~200.json")) as file:
        stored = json.load(file)
    functions = [one["function"] for one in stored]
    scores = [one["score"] if one["score"] else float("-inf") for one in stored]
    found = (functions, scores, stored[-1]["sample_order"])
    return (*found, [one["algorithm"] for one in stored]) if get_algorithm else found


def resume_eoh(eoh, path):
    eoh._resume_mode = True
    numbers = [int(name[4:-5]) for name in os.listdir(os.path.join(path, "population"))]
    population = Population(pop_size=eoh._pop_size)
    with open(os.path.join(path, "population", f"pop_{max(numbers)}.json")) as file:
        stored = json.load(file)
    for one in stored:
        function = TextFunctionProgramConverter.text_to_function(one["function"])
        function.score, function.algorithm = one["score"], one["algorithm"]
        population.register_function(function)
    population._generation = max(numbers)
    eoh._population = population
    functions, scores, last, algorithms = _get_all_samples_and_scores(path)
    for text, score, algorithm in zip(functions, scores, algorithms, strict=True):
        function = TextFunctionProgramConverter.text_to_function(text)
        function.score, function.algorithm = score, algorithm
        eoh._profiler.register_function(function, resume_mode=True)
    eoh._tot_sample_nums = last
