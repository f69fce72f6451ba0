"""The six getters of EoH 0.1."""


class GetPrompts:
    def get_task(self):
        return "Rate the bins for an item."

    def get_func_name(self):
        return "score"

    def get_func_inputs(self):
        return ["item", "bins"]

    def get_func_outputs(self):
        return ["scores"]

    def get_inout_inf(self):
        return "'bins' are the remaining capacities."

    def get_other_inf(self):
        return "All are Numpy arrays."
