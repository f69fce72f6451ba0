"""From the names in the settings to selection, management and method."""

from .management import pop_greedy
from .selection import prob_rank


class Methods:
    def __init__(self, paras, problem):
        self.paras, self.problem = paras, problem
        self.select, self.manage = prob_rank, pop_greedy

    def get_method(self):
        from .eoh.eoh import EOH

        return EOH(self.paras, self.problem, self.select, self.manage)
