"""Problems as users of EoH 0.2 write them: tours, with templates of every kind."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "eoh_src"))

import numpy as np
from eoh import BaseProblem
from get_instance import instances

print("hosts print what they like")


class Tour(BaseProblem):
    template_program = '''
def select_next_node(current_node: int, destination_node: int, unvisited_nodes: np.ndarray,
                     distance_matrix: np.ndarray) -> int:
    """Choose the next node.

    Args:
        unvisited_nodes: the candidates
    """
    return unvisited_nodes[np.argmin(distance_matrix[current_node][unvisited_nodes])]
'''
    task_description = "Find a short tour by choosing the next node."

    def __init__(self, size=8, n_instance=3, timeout=20, n_processes=1):
        super().__init__(timeout=timeout, n_processes=n_processes)
        self.data = instances(n_instance, size)

    def evaluate_program(self, program_str, callable_func):
        lengths = []
        for points in self.data:
            distances = np.linalg.norm(points[:, None] - points, axis=2)
            tour = [0]
            while len(tour) < len(points):
                left = np.setdiff1d(np.arange(len(points)), tour)
                chosen = callable_func(tour[-1], 0, left, distances)
                if chosen not in left:
                    return None
                tour.append(int(chosen))
            lengths.append(sum(distances[a, b] for a, b in zip(tour, [*tour[1:], 0], strict=True)))
        return float(np.mean(lengths))


class TwoFunctions(Tour):
    template_program = '''
import numpy as np

def rate(current_node, unvisited_nodes, distance_matrix):
    """Rate the candidates."""
    return -distance_matrix[current_node][unvisited_nodes]

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    """Choose the next node by its rate."""
    return unvisited_nodes[np.argmax(rate(current_node, unvisited_nodes, distance_matrix))]
'''


class AsClass(Tour):
    template_program = '''
class Chooser:
    """Chooses nodes."""

    def __init__(self):
        self.weight = 1.0

    def choose(self, current_node, destination_node, unvisited_nodes, distance_matrix):
        """Choose the next node."""
        return unvisited_nodes[np.argmin(self.weight * distance_matrix[current_node][unvisited_nodes])]
'''

    def evaluate_program(self, program_str, callable_func):
        return super().evaluate_program(program_str, callable_func().choose)


class StartsProcesses(Tour):
    def evaluate_program(self, program_str, callable_func):
        subprocess.run(["true"], check=True)
        return super().evaluate_program(program_str, callable_func)
