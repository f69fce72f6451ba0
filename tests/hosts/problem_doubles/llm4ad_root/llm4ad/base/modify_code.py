"""What the host changes in programs, made in the simplest way that serves the test programs."""

import re


class ModifyCode:
    @classmethod
    def add_numba_decorator(cls, program, function_name):
        return "import numba\n" + re.sub(
            rf"^def {function_name}\b", r"@numba.jit(nopython=True)\n\g<0>", program, flags=re.M
        )

    @classmethod
    def replace_div_with_protected_div(cls, program, delta=1e-5, numba_accelerate=False):
        program = re.sub(r"(\w+) / (\w+)", r"_protected_div(\1, \2)", program)
        return f"{program}\ndef _protected_div(x, y):\n    return x / (y + {delta})\n"

    @classmethod
    def add_numpy_random_seed_to_func(cls, program, func_name, seed=2024):
        return re.sub(rf"^(def {func_name}\b.*:)$", rf"\1\n    np.random.seed({seed})", program, flags=re.M)
