"""Where the original decorates functions for numba; here the program only learns which ones would be."""


def add_numba_decorator(program, function_name):
    compile(program, "program", "exec")
    return f"accelerated = {function_name!r}\n{program}"
